"""Tables and their differences, as text for people and as JSON for machines, on stdout."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from warmup.core.errors import printable
from warmup.core.rows import Row
from warmup.keys.order import natural_order
from warmup.keys.registry import KINDS, ingredients_of, kind_of
from warmup.table import Table
from warmup.table.codec import digest_of, encode
from warmup.table.merge import Difference

_WIDE = 10_000


def print_table(table: Table, op: str | None, bucket: str | None) -> None:
    """Print the rows of *table*, filtered by op and by m."""
    runtime = table.provenance.runtime
    console = make_console()
    console.print(
        f"{runtime.device.name} ({runtime.device.arch}), torch {runtime.torch}, "
        f"triton {runtime.triton or 'none'}, built {table.provenance.created} by warmup "
        f"{table.provenance.warmup}, mode {table.policy.mode}, timed {_timed(table)}, "
        f"digest {digest_of(table)[:16]}",
        soft_wrap=True,
    )
    keys = _filtered(table, op, bucket)
    for kind in KINDS.values():
        own = [key for key in keys if kind_of(key) is kind]
        if not own:
            continue
        question = [kind.question] if kind.question else []
        grid = make_grid(kind.name, *question, "winner", "us", "library us", "speed-up")
        for key in own:
            asked = [kind.ingredients(key).get(name, "") for name in question]
            grid.add_row(kind.label(key), *asked, *row_cells(table.rows[key]))
        console.print(grid)
    flags = Counter(flag for key in keys for flag in table.rows[key].evidence.flags)
    said = "".join(f", {count} {flag}" for flag, count in sorted(flags.items()))
    console.print(f"{len(keys)} of {len(table.rows)} rows{said}")


def _timed(table: Table) -> str:
    timing = table.policy.timing
    return f"{timing.launch} from a {timing.l2} L2"


def print_table_json(table: Table, op: str | None, bucket: str | None) -> None:
    """Print the document of *table* with only the filtered rows."""
    document = json.loads(encode(table))
    kept = set(_filtered(table, op, bucket))
    document["rows"] = {
        kind: {key: row for key, row in rows.items() if key in kept}
        for kind, rows in document["rows"].items()
    }
    print_json(document)


def print_difference(difference: Difference) -> None:
    """Print what differs, one line each, in the manner of diff."""
    for line in difference.context:
        say(f"! {line}")
    for key in difference.only_a:
        say(f"- {key}")
    for key in difference.only_b:
        say(f"+ {key}")
    for key, a, b in difference.changed:
        say(f"~ {key}")
        say(f"    a {a.winner} {a.evidence.time_us:.1f} us")
        say(f"    b {b.winner} {b.evidence.time_us:.1f} us")
    if difference.is_empty:
        sys.stderr.write("no difference\n")


def print_difference_json(difference: Difference) -> None:
    """Print what differs as JSON."""
    print_json(
        {
            "context": list(difference.context),
            "only_a": list(difference.only_a),
            "only_b": list(difference.only_b),
            "changed": [
                {"key": key, "a": str(a.winner), "b": str(b.winner)}
                for key, a, b in difference.changed
            ],
        }
    )


def say(line: str) -> None:
    """Print one line; logs and tables are untrusted, so nothing in it can drive a terminal."""
    sys.stdout.write(printable(line) + "\n")


def make_grid(*columns: str) -> Grid:
    """Return an empty grid of *columns*, whose numbers are aligned to the right."""
    grid = Grid(box=None, pad_edge=False)
    whole = not sys.stdout.isatty()
    for column in columns:
        numeric = column in ("us", "library us", "speed-up")
        grid.add_column(
            column,
            justify="right" if numeric else "left",
            no_wrap=numeric or whole,
            overflow="fold",
        )
    return grid


def make_console() -> Console:
    """Return a console on stdout, as wide as the terminal, in a file wide enough for every line."""
    width = None if sys.stdout.isatty() else _WIDE
    return Console(markup=False, highlight=False, width=width)


def row_cells(row: Row) -> tuple[str, str, str, str]:
    """Return the winner of *row*, its time, the library's, and the speed-up."""
    evidence = row.evidence
    library = evidence.library_us
    return (
        row.winner.short,
        f"{evidence.time_us:.1f}",
        "-" if library is None else f"{library:.1f}",
        "-" if library is None else f"{library / evidence.time_us:.2f}x",
    )


def _filtered(table: Table, op: str | None, bucket: str | None) -> list[str]:
    def matches(key: str) -> bool:
        named = ingredients_of(key)
        return op in (None, named.get("op")) and bucket in (None, named.get("m"))

    return sorted((key for key in table.rows if matches(key)), key=natural_order)


def print_json(document: Any) -> None:
    """Print *document*."""
    json.dump(document, sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")
