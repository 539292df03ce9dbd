"""`warmup store`: the commands on a store of rows, of which tables are views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.output import complain, fold, print_report, terminal_width
from warmup.core.counted import counted
from warmup.core.errors import SettingsError
from warmup.table import Table
from warmup.table.row_store import RowStore
from warmup.table.row_store.contents import GroupContents, contents_of
from warmup.table.row_store.row_store import Addition
from warmup.table.row_store.served_versions import parse_served
from warmup.table.row_store.sweep import Swept, sweep
from warmup.table.row_store.table_view import TableView, view_like
from warmup.table.store import read, write

_SHOWN_KEYS: Final = 20

StoreOption = Annotated[
    str,
    typer.Option(
        "--store", help="The store of rows: a folder or, with the extra store, a URL such as s3://."
    ),
]
ServedOption = Annotated[
    list[str] | None,
    typer.Option(help="Versions that are served, such as torch=2.13,triton=3.8. Repeatable."),
]


@dataclass(frozen=True, slots=True)
class _Added:
    """The rows of the table *path* were added."""

    path: Path
    addition: Addition


def add(
    tables: Annotated[list[Path], typer.Argument(help="Table files.")],
    *,
    store: StoreOption,
    as_json: options.AsJson = False,
) -> None:
    """Add the rows of tables to a store. Exit code 1 when the store has damaged files."""
    rows = RowStore(store)
    done = [_Added(path, rows.add(read(path))) for path in tables]
    print_report(done, spell_added, document_of_added, as_json=as_json)
    damaged = {str(error): None for each in done for error in each.addition.damaged}
    for line in damaged:
        complain(f"error: {line}")
    if damaged:
        raise typer.Exit(EXIT_FOUND)


def get(
    *,
    like: Annotated[
        Path, typer.Option(help="A table: its device, versions, policy and keys are asked for.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The table file to write.")],
    store: StoreOption,
    every: Annotated[
        bool, typer.Option("--all", help="Every key of the store that the table may have.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a table of rows of a store. Exit code 1 when it has none of them."""
    wanted = read(like)
    view = view_like(RowStore(store), wanted, every=every)
    if view.table.rows:
        _check_keeps(out, view.table, store)
        write(out, view.table)
    print_report((out, view), spell_view, document_of_view, as_json=as_json)
    if not view.table.rows:
        complain(f"error: {store} has no row for {like}; nothing was written")
        raise typer.Exit(EXIT_FOUND)


def _check_keeps(out: Path, table: Table, store: str) -> None:
    """Check that the file *out* has no row that *table* and the store lack.

    Raises:
        SettingsError: it has.
    """
    if out.is_file() and (lost := read(out).rows.keys() - table.rows.keys()):
        raise SettingsError(
            f"--out {out} has {counted(len(lost), 'row')} that {store} would not give back",
            f"add it first (warmup store add {out} --store {store}), or name another file",
        )


def list_store(*, store: StoreOption, as_json: options.AsJson = False) -> None:
    """Print what a store has, by device, versions and policy. Exit code 1 with damaged files."""
    groups = contents_of(RowStore(store))
    print_report(groups, spell_contents, document_of_contents, as_json=as_json)
    if any(group.damaged for group in groups):
        raise typer.Exit(EXIT_FOUND)


def gc(*, store: StoreOption, served: ServedOption = None, as_json: options.AsJson = False) -> None:
    """Merge the files of a store, set damaged ones aside; with --served remove other versions."""
    swept = sweep(RowStore(store), parse_served(served or ()))
    print_report(swept, spell_swept, asdict, as_json=as_json)


def spell_added(done: Sequence[_Added]) -> Iterator[str]:
    """Yield for each table how many rows were new, and the conflicts among them."""
    for each in done:
        addition = each.addition
        yield (
            f"{each.path}: {counted(len(addition.added), 'row')} added, {addition.known} known, "
            f"group {addition.group}"
        )
        for key in addition.conflicts[:_SHOWN_KEYS]:
            yield f"  conflict, both are kept: {key}"
        if len(addition.conflicts) > _SHOWN_KEYS:
            yield f"  {len(addition.conflicts) - _SHOWN_KEYS} more conflicts; --json has all"


def document_of_added(done: Sequence[_Added]) -> list[dict[str, Any]]:
    """Return what was added as JSON values."""
    return [
        {
            "table": str(each.path),
            "group": each.addition.group,
            "added": list(each.addition.added),
            "known": each.addition.known,
            "conflicts": list(each.addition.conflicts),
            "damaged": [str(error) for error in each.addition.damaged],
        }
        for each in done
    ]


def spell_view(made: tuple[Path, TableView]) -> Iterator[str]:
    """Yield how many rows the table has, what is missing and which conflicts were settled."""
    path, view = made
    yield f"{path}: {counted(len(view.table.rows), 'row')}, {len(view.missing)} keys without a row"
    for key in view.missing[:_SHOWN_KEYS]:
        yield f"  no row: {key}"
    if len(view.missing) > _SHOWN_KEYS:
        yield f"  {len(view.missing) - _SHOWN_KEYS} more without a row; --json has all"
    if view.conflicts:
        text = (
            f"{counted(len(view.conflicts), 'key')} with several winners; the better measured row "
            "answers (docs/how-to/keep-rows-in-a-store.md#which-row-answers)"
        )
        yield from fold(text, indent=2, width=terminal_width())


def document_of_view(made: tuple[Path, TableView]) -> dict[str, Any]:
    """Return what the table has as JSON values."""
    path, view = made
    return {
        "table": str(path),
        "rows": len(view.table.rows),
        "missing": list(view.missing),
        "conflicts": list(view.conflicts),
    }


def spell_contents(groups: Sequence[GroupContents]) -> Iterator[str]:
    """Yield for each group its device and versions, its rows, and files that are damaged."""
    for group in groups:
        yield f"{group.runtime}"
        text = (
            f"{counted(group.rows, 'row')} for {counted(group.keys, 'key')}, "
            f"{group.conflicts} with several winners, mode {group.mode}, "
            f"{counted(group.files, 'file')}, {group.size} bytes, "
            f"measured {group.oldest[:10]} to {group.newest[:10]}, group {group.name}"
        )
        yield from fold(text, "  ", indent=4, width=terminal_width())
        for line in group.damaged:
            yield f"  damaged: {line}"
    rows = sum(group.rows for group in groups)
    yield f"{counted(rows, 'row')} in {counted(len(groups), 'group')}"


def document_of_contents(groups: Sequence[GroupContents]) -> list[dict[str, Any]]:
    """Return the groups as JSON values."""
    return [asdict(group) for group in groups]


def spell_swept(swept: Swept) -> Iterator[str]:
    """Yield what stays, and what is gone or set aside."""
    yield (
        f"{counted(swept.rows, 'row')} in {counted(swept.files, 'file')}, "
        f"{swept.copies} equal rows merged"
    )
    for group, rows in swept.unserved:
        yield f"removed: {counted(rows, 'row')} of versions that are not served, group {group}"
    for name in swept.set_aside:
        yield f"damaged, set aside in the folder damaged: {name}"
    if swept.set_aside:
        yield f"{counted(swept.salvaged, 'row')} could be read of damaged files and stay"
    if swept.leftovers:
        yield f"removed: {counted(swept.leftovers, 'half-written file')} of killed writers"
