"""`warmup show`, `warmup diff` and `warmup merge`: the commands on table files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.output import (
    ABSENT,
    counted,
    fold,
    grid,
    print_report,
    say,
    terminal_width,
    times,
    timing,
    versions,
)
from warmup.core.rows import Row, lag_behind_library
from warmup.keys.order import natural_order
from warmup.keys.registry import KINDS, ingredients_of, kind_of
from warmup.table import Table
from warmup.table.codec import digest_of, encode
from warmup.table.merge import Difference
from warmup.table.merge import diff as compare_tables
from warmup.table.merge import merge as merge_tables
from warmup.table.store import read, write

ROW_HEAD: Final = ("winner", "us", "library us", "speed-up")


class Prefer(StrEnum):
    """How merge settles a key with two winners."""

    A = "a"
    B = "b"
    EVIDENCE = "evidence"
    FASTER = "faster"


def show(
    table: options.TableFile,
    op: Annotated[str | None, typer.Option(help="Only rows of this op, such as addmm.")] = None,
    bucket: Annotated[str | None, typer.Option(help="Only rows with this m, such as 560.")] = None,
    *,
    as_json: options.AsJson = False,
) -> None:
    """Print the rows of a table."""
    print_report(
        read(table),
        partial(spell_table, op=op, bucket=bucket),
        partial(document_of_table, op=op, bucket=bucket),
        as_json=as_json,
    )


def diff(
    a: Annotated[Path, typer.Argument(help="A table file.")],
    b: Annotated[Path, typer.Argument(help="The table file to compare with.")],
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
    a: Annotated[Path, typer.Argument(help="A table file.")],
    b: Annotated[Path, typer.Argument(help="A table file for the same device and runtime.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The table file to write.")],
    prefer: Annotated[
        Prefer | None,
        typer.Option(
            help="The winner to keep where a key has two; evidence: the better measured, faster: "
            "the one with the smaller time."
        ),
    ] = None,
) -> None:
    """Write the union of two tables. Two winners for a key are an error without --prefer."""
    table_a, table_b = read(a), read(b)
    union = merge_tables(table_a, table_b, prefer.value if prefer else None)
    write(out, union, known=(table_a, table_b))
    say(f"{out}: {len(union.rows)} rows")


def spell_table(table: Table, op: str | None = None, bucket: str | None = None) -> Iterator[str]:
    """Yield the origin of *table*, then a grid for each kind of its rows of *op* and *bucket*."""
    origin, method = table.provenance, table.policy.timing
    device, runtime = origin.runtime.device, origin.runtime
    yield (
        f"{device.name} ({device.arch}), {versions(runtime.torch, runtime.triton)}, "
        f"built {origin.created} by warmup {origin.warmup}, mode {table.policy.mode}, "
        f"{timing(method.launch, method.l2)}, digest {digest_of(table)[:16]}"
    )
    for assumption in origin.assumptions:
        yield from fold(assumption, indent=4, width=terminal_width())
    keys = _select(table, op, bucket)
    for kind in KINDS.values():
        own = [key for key in keys if kind_of(key) is kind]
        if not own:
            continue
        question = [kind.question] if kind.question else []
        rows = []
        for key in own:
            named = kind.ingredients(key)
            answers = [named.get(name, ABSENT) for name in question]
            rows.append([kind.label(key), *answers, *row_cells(table.rows[key])])
        head = (kind.name, *question, *ROW_HEAD)
        yield from grid(head, rows, texts=len(question) + 2)
    flags = Counter(flag for key in keys for flag in table.rows[key].evidence.flags)
    flagged = "".join(f", {count} {flag}" for flag, count in sorted(flags.items()))
    doubted = [key for key in keys if table.rows[key].untrusted is not None]
    yield from (f"not trusted, not served: {key}: {table.rows[key].untrusted}" for key in doubted)
    flagged += f", {len(doubted)} not trusted" if doubted else ""
    yield f"{len(keys)} of {len(table.rows)} rows{flagged}"
    if lags := sum(lag_behind_library(table.rows[key].evidence) is not None for key in keys):
        yield (
            f"{counted(lags, 'row')} slower than the library's kernel at the largest size of a "
            "range: along the range the winner loses less (evidence.along)"
        )


def row_cells(row: Row) -> tuple[str, str, str, str]:
    """Return the cells of *row* under `ROW_HEAD`."""
    evidence = row.evidence
    library = evidence.library_us
    return (
        row.winner.short,
        f"{evidence.time_us:.1f}",
        ABSENT if library is None else f"{library:.1f}",
        times(None if library is None else library / evidence.time_us),
    )


def document_of_table(table: Table, op: str | None = None, bucket: str | None = None) -> Any:
    """Return the document of *table* with only its rows of *op* and *bucket*."""
    document = json.loads(encode(table))
    kept = set(_select(table, op, bucket))
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


def _select(table: Table, op: str | None, bucket: str | None) -> list[str]:
    """Return the keys of *table* with that op and m; any where it is None."""

    def matches(key: str) -> bool:
        named = ingredients_of(key)
        return op in (None, named.get("op")) and bucket in (None, named.get("m"))

    return sorted((key for key in table.rows if matches(key)), key=natural_order)
