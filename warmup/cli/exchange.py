"""`warmup import` and `warmup export`: torch's own lookup table into a table, and out of one."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.output import fold, print_report, terminal_width
from warmup.cli.signals import interruptible
from warmup.core.counted import counted
from warmup.core.files import write_output
from warmup.table.schema import MAX_CONFIGS
from warmup.table.store import read
from warmup.tuning.lookup_table import (
    ASSUMED,
    Entry,
    ExportedTable,
    ImportedTable,
    Verification,
    export_lookup_table,
    import_configs,
    read_lookup_table,
    verify_imported,
)

_SHOWN_LINES: Final = 20  # lines of one kind


@dataclass(frozen=True, slots=True)
class Imported:
    """What `warmup import` read and did; ``verified`` is None without ``--verify``."""

    entries: Sequence[Entry]
    into: ImportedTable
    verified: Verification | None

    @property
    def lacking(self) -> list[Entry]:
        """The entries without a config."""
        return [entry for entry in self.entries if entry.config is None]


def import_table(
    lookup_table: Annotated[
        Path, typer.Argument(metavar="LOOKUP_TABLE", help="Torch's lookup table as JSON.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="The table that gets the configs, unverified.")],
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Measure the configs in the table, and the library's kernels."
        ),
    ] = False,
    device: options.DeviceOption = "auto",
    mode: Annotated[str, typer.Option(help="The mode of the build that made the table.")] = (
        "max-autotune-gemm"
    ),
    as_json: options.AsJson = False,
) -> None:
    """Add the configs of torch's own lookup table to a table.

    Nobody measured them here: they are not served, except with --on-miss unverified.
    """
    from warmup.cli.progress import BuildProgress

    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # torch's own
    entries = read_lookup_table(lookup_table)
    into = import_configs(entries, out, device=device, mode=mode)
    verified = None
    if verify and into.table.imported:
        with BuildProgress() as progress, interruptible(progress.interrupted):
            verified = verify_imported(into, device=device, mode=mode, observer=progress)
    found = Imported(entries, into, verified)
    print_report(found, _spell_import, _document_of_import, as_json=as_json)
    if len(found.lacking) == len(entries) or (verified is not None and verified.open):
        raise typer.Exit(EXIT_FOUND)


def export(
    table: options.TableFile,
    *,
    out: Annotated[Path, typer.Option(help="The file for torch's lookup table, JSON.")],
    as_json: options.AsJson = False,
) -> None:
    """Write the GEMM rows of a table as torch's own lookup table, which needs no warmup."""
    exported = export_lookup_table(read(table))
    write_output(out, json.dumps(exported.entries, indent=1) + "\n", "--out")
    print_report(exported, partial(_spell_export, out), _document_of_export, as_json=as_json)
    if not exported.entries:
        raise typer.Exit(EXIT_FOUND)


def _spell_import(found: Imported) -> Iterator[str]:
    """Yield what was read, which entries have no config and why, and what is unverified."""
    line = partial(fold, indent=2, width=terminal_width())
    into, verified = found.into, found.verified
    complete = len(found.entries) - len(found.lacking)
    yield f"{counted(len(found.entries), 'config')} read, {complete} complete"
    if complete:
        yield from line(ASSUMED)
    for entry in found.lacking[:_SHOWN_LINES]:
        yield from line(f"not taken: {entry.origin}: {entry.key or ''} {entry.lacking}")
    if (more := len(found.lacking) - _SHOWN_LINES) > 0:
        yield f"not taken: {more} more; --json lists all"
    if into.with_row:
        yield from line(f"{len(into.with_row)} have a row already, which stays: it was measured")
    if into.left_out:
        yield from line(
            f"{counted(sum(into.left_out.values()), 'config')} of "
            f"{counted(len(into.left_out), 'key')} left out: a table holds {MAX_CONFIGS} imported "
            "configs of a key"
        )
    still = into.table.imported.keys() if verified is None else verified.open.keys()
    if verified is not None:
        yield from line(
            f"verified: imported configs of {counted(len(verified.confirmed), 'key')} confirmed, "
            f"of {len(verified.refuted)} slower than the library's kernel, wrong or not built here"
        )
        for key, why in verified.open.items():
            yield from line(f"still unverified: {key}: {why}")
    yield from line(
        f"{into.path}: {counted(len(still), 'key')} with imported, unverified configs, which are "
        "not served, except with --on-miss unverified"
    )


def _document_of_import(found: Imported) -> dict[str, Any]:
    into, verified = found.into, found.verified
    return {
        "configs": [
            {
                "key": entry.key,
                "origin": entry.origin,
                "winner": None if entry.config is None else str(entry.config.winner),
                "lacking": entry.lacking or None,
            }
            for entry in found.entries
        ],
        "assumed": ASSUMED,
        "table": str(into.path),
        "with_row": list(into.with_row),
        "left_out": dict(into.left_out),
        "verified": None
        if verified is None
        else {
            "confirmed": list(verified.confirmed),
            "refuted": list(verified.refuted),
            "open": dict(verified.open),
        },
    }


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


def _document_of_export(exported: ExportedTable) -> dict[str, Any]:
    left_out = {reason: list(keys) for reason, keys in exported.left_out.items()}
    return {"keys": list(exported.entries), "rows": exported.rows, "left_out": left_out}
