"""Torch's own lookup table: `warmup export` writes it, `build --problems` measures its configs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from warmup.cli import options
from warmup.cli.output import fold, print_line, record, terminal_width
from warmup.cli.streams import EXIT_FOUND
from warmup.core.files import write_output
from warmup.core.text import counted
from warmup.table.store import read
from warmup.tuning.lookup_table import (
    ASSUMED,
    Entry,
    ExportedTable,
    MeasuredConfigs,
    export_lookup_table,
)


def export(
    table: options.TableFile,
    *,
    out: Annotated[Path, typer.Option(help="The file for torch's lookup table, JSON.")],
) -> None:
    """Write the GEMM rows of a table as torch's own lookup table, which needs no warmup."""
    exported = export_lookup_table(read(table))
    write_output(out, json.dumps(exported.entries, indent=1) + "\n", "--out")
    for line in _spell_export(out, exported):
        print_line(line)
    if not exported.entries:
        raise typer.Exit(EXIT_FOUND)


def spell_configs(entries: Sequence[Entry], measured: MeasuredConfigs | None) -> Iterator[str]:
    """Yield what was read and measured of torch's table, and by reason what got no row."""
    line = partial(fold, indent=2, width=terminal_width())
    lacking = Counter(entry.lacking for entry in entries if entry.winner is None)
    complete = len(entries) - lacking.total()
    yield f"{counted(len(entries), 'config')} read, {complete} complete"
    for reason, count in lacking.most_common():
        first = next(entry.origin for entry in entries if entry.lacking == reason)
        yield from line(f"not taken: {counted(count, 'config')}: {reason} (first: {first})")
    if measured is None:
        return
    yield from line(ASSUMED)
    yield from line(
        f"{measured.report.path}: configs of {counted(len(measured.confirmed), 'key')} confirmed, "
        f"of {len(measured.refuted)} slower than the library's kernel, wrong or not built here"
    )
    if known := measured.report.known:
        yield from line(f"{len(known)} had a row already, which stays")
    for reason, keys in measured.open.items():
        yield from line(f"without a row: {counted(len(keys), 'key')}: {reason} (first: {keys[0]})")


def document_of_configs(
    entries: Sequence[Entry], measured: MeasuredConfigs | None
) -> dict[str, Any]:
    """Return the same as JSON values."""
    found = measured and {
        **record(measured, without=("report",)),
        "table": str(measured.report.path),
        "known": measured.report.known,
    }
    return {"configs": record(entries), "assumed": ASSUMED, "measured": found}


def _spell_export(out: Path, exported: ExportedTable) -> Iterator[str]:
    """Yield how many rows are in the file, and the rows that are not, by reason."""
    several = sum(len(configs) > 1 for configs in exported.entries.values())
    left_out = sum(map(len, exported.left_out.values()))
    yield (
        f"{out}: {counted(exported.rows, 'row')} under {counted(len(exported.entries), 'key')} of "
        f"torch's, {several} with several kernels, which torch measures; {left_out} left out"
    )
    for reason, keys in exported.left_out.items():
        text = f"left out: {counted(len(keys), 'row')}: {reason}"
        yield from fold(text, indent=2, width=terminal_width())
