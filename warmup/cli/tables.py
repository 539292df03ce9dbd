"""`warmup show`, `warmup diff` and `warmup merge`: the commands on table files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from enum import StrEnum
from functools import partial, reduce
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.output import complain, print_report, say
from warmup.cli.show_render import (
    document_of_review,
    select_keys,
    spell_candidates,
    spell_review,
    spell_table,
)
from warmup.core.counted import counted
from warmup.diagnostics.review import Level, peaks_in, review_table
from warmup.diagnostics.review import review as find_doubts
from warmup.keys.kind import natural_order
from warmup.keys.registry import ingredients_of
from warmup.table import Table
from warmup.table.codec import encode
from warmup.table.merge import Difference
from warmup.table.merge import diff as compare_tables
from warmup.table.merge import merge as merge_tables
from warmup.table.store import read, write

_SHOWN_VALUES: Final = 12


class Prefer(StrEnum):
    """How merge settles a key with two winners."""

    A = "a"
    B = "b"
    EVIDENCE = "evidence"
    FASTER = "faster"


def show(
    tables: Annotated[
        list[Path], typer.Argument(metavar="TABLE", help="A table; with --review several.")
    ],
    op: Annotated[str | None, typer.Option(help="Only rows of this op, such as addmm.")] = None,
    bucket: Annotated[str | None, typer.Option(help="Only rows with this m, such as 560.")] = None,
    *,
    candidates: Annotated[
        str | None,
        typer.Option(help="Rank the candidates of the rows with this text in their key."),
    ] = None,
    review: Annotated[
        bool, typer.Option("--review", help="List times that cannot be true, or contradict others.")
    ] = False,
    peaks: options.PeaksOption = None,
    fail_on: Annotated[
        Level | None,
        typer.Option(help="With --review: exit with code 1 for doubts of this level, or a worse."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the rows of a table. Exit code 1 when no row matches.

    With --review, list the times of tables that cannot be true, or that contradict each other.
    """
    filters = {"--op": op, "--bucket": bucket, "--candidates": candidates}
    given = [f"{name} {value}" for name, value in filters.items() if value is not None]
    if review:
        if given:
            raise typer.BadParameter(f"{given[0]}: --review reviews every row of a table")
        known_peaks = None if peaks is None else peaks_in(peaks)
        reviewed = ((path, review_table(read(path), known_peaks)) for path in tables)
        doubted = {path: (each, find_doubts(each)) for path, each in reviewed}
        print_report(doubted, spell_review, document_of_review, as_json=as_json)
        levels = {doubt.level for _, doubts in doubted.values() for doubt in doubts}
        if fail_on is not None and levels & {fail_on, Level.WRONG}:  # the worst level always fails
            raise typer.Exit(EXIT_FOUND)
        return
    if peaks is not None or fail_on is not None:
        raise typer.BadParameter("--peaks and --fail-on need --review")
    if len(tables) > 1:
        raise typer.BadParameter(f"{len(tables)} tables: name one, or --review them")
    (table,) = tables
    found = read(table)
    keys = select_keys(found, op, bucket, candidates)
    spell = (
        partial(spell_table, op=op, bucket=bucket)
        if candidates is None
        else partial(spell_candidates, keys=keys)
    )
    print_report(found, spell, partial(document_of_table, keys=keys), as_json=as_json)
    if given and not keys:
        complain(f"error: no row of {table} matches {', '.join(given)}; {_known(found)}")
        raise typer.Exit(EXIT_FOUND)


def _known(table: Table) -> str:
    """Return the ops and the sizes m that rows of *table* have, for whoever filters by them."""
    named = [ingredients_of(key) for key in table.rows]
    texts = []
    for name, label in (("op", "op"), ("m", "m (--bucket)")):
        values = sorted({one[name] for one in named if name in one}, key=natural_order)
        shown = ", ".join(values[:_SHOWN_VALUES]) or "none"
        texts.append(f"{label}: {shown}{', ...' if len(values) > _SHOWN_VALUES else ''}")
    return f"its rows have {'; '.join(texts)}"


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A table file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The table file to compare with.")],
    *,
    as_json: options.AsJson = False,
) -> None:
    """Print the differences between two tables. Exit code 1 when there are any."""
    difference = compare_tables(read(a), read(b))
    print_report(difference, spell_difference, document_of_difference, as_json=as_json)
    if not difference.is_empty:
        raise typer.Exit(EXIT_FOUND)
    if not as_json:
        say("no difference")


def merge(
    tables: Annotated[
        list[Path],
        typer.Argument(metavar="A B...", help="Table files for one device and runtime."),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The table file to write.")],
    prefer: Annotated[
        Prefer | None,
        typer.Option(
            help="The winner to keep where a key has two; evidence: the better measured, faster: "
            "the one with the smaller time."
        ),
    ] = None,
) -> None:
    """Write the union of tables. Two winners for a key are an error without --prefer.

    Further tables are joined one by one: a is then the union so far, b the next table.
    """
    if not tables[1:]:
        raise typer.BadParameter("name at least two tables")
    known = [read(path) for path in tables]
    union = reduce(partial(merge_tables, prefer=prefer.value if prefer else None), known)
    write(out, union, known=known)
    say(f"{out}: {counted(len(union.rows), 'row')}")


def document_of_table(table: Table, keys: Collection[str]) -> Any:
    """Return the document of *table* with only its rows of *keys*."""
    document = json.loads(encode(table))
    kept = set(keys)
    document["rows"] = {
        kind: {key: row for key, row in rows.items() if key in kept}
        for kind, rows in document["rows"].items()
    }
    return document


def spell_difference(difference: Difference) -> Iterator[str]:
    """Yield the differences in the manner of diff, a sign and a line for each."""
    yield from (f"! {line}" for line in difference.context)
    yield from (f"- {key}" for key in difference.only_a)
    yield from (f"+ {key}" for key in difference.only_b)
    for key, a, b in difference.changed:
        yield f"~ {key}"
        for name, row in (("a", a), ("b", b)):
            doubt = "" if row.untrusted is None else f", not trusted: {row.untrusted}"
            yield f"    {name} {row.winner} {row.evidence.time_us:.1f} us{doubt}"


def document_of_difference(difference: Difference) -> dict[str, Any]:
    """Return the differences as JSON values."""
    return {
        "context": list(difference.context),
        "only_a": list(difference.only_a),
        "only_b": list(difference.only_b),
        "changed": [
            {
                "key": key,
                "a": str(a.winner),
                "b": str(b.winner),
                "untrusted_a": a.untrusted,
                "untrusted_b": b.untrusted,
            }
            for key, a, b in difference.changed
        ],
    }
