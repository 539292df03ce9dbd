"""`warmup import`: problems and configs from what other tools tuned."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.output import fold, print_report, say, terminal_width
from warmup.cli.signals import interruptible
from warmup.core.counted import counted
from warmup.core.errors import SettingsError
from warmup.core.files import write_output
from warmup.diagnostics.imports.entry import IMPORTED_REASON, Entry, ImportedEntry, Unmapped
from warmup.diagnostics.imports.operand_shape import ASSUMED
from warmup.diagnostics.imports.sources import read_sources
from warmup.diagnostics.misses import encode_problems
from warmup.table.imported_json import MAX_CONFIGS
from warmup.tuning.imported import ImportedTable, Verification, import_configs, verify_imported

_MAX_IMPORTED_ENTRIES: Final = 100_000
_SHOWN_REASONS: Final = 20


@dataclass(frozen=True, slots=True)
class ImportedFiles:
    """What `warmup import` read and did; ``into`` and ``verified`` are None where not asked for."""

    entries: tuple[Entry, ...]
    into: ImportedTable | None
    verified: Verification | None

    @property
    def problems(self) -> dict[str, ImportedEntry]:
        """The problems by key, each with the entry that was read last, preferably with a config."""
        mapped = [one for one in self.entries if isinstance(one, ImportedEntry)]
        ordered = sorted(mapped, key=lambda one: one.config is not None)
        return {one.key: one for one in ordered}

    @property
    def unmapped(self) -> tuple[Unmapped, ...]:
        """The entries that are no problem of a table."""
        return tuple(one for one in self.entries if isinstance(one, Unmapped))

    @property
    def skipped_files(self) -> int:
        """How many files of folders could not be read."""
        return sum(one.is_file for one in self.unmapped)


def import_files(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Logs with inductor's AUTOTUNE blocks, inductor's cache folders or files of them, "
            "torch's lookup tables as JSON, vLLM's tuned configs."
        ),
    ],
    problems_out: Annotated[
        Path | None, typer.Option(help="File for the problems, which `build --problems` tunes.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The table that gets the configs, unverified.")
    ] = None,
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
    """Read what other tools tuned: problems to build, and configs that nobody measured here.

    Unverified configs are not served, except with --on-miss unverified.
    """
    from warmup.cli.progress import BuildProgress

    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # torch's own
    if verify and out is None:
        raise SettingsError("--verify has no table", "name it by --out")
    entries: list[Entry] = []
    for entry in read_sources(files):
        if len(entries) == _MAX_IMPORTED_ENTRIES:
            raise SettingsError(
                f"more than {_MAX_IMPORTED_ENTRIES} entries", "import fewer files at once"
            )
        entries.append(entry)
    into = None if out is None else import_configs(entries, out, device=device, mode=mode)
    verified = None
    if verify and into is not None and into.table.imported:
        with BuildProgress(None) as progress, interruptible(progress.interrupted):
            verified = verify_imported(into, device=device, mode=mode, observer=progress)
    found = ImportedFiles(tuple(entries), into, verified)
    if problems_out is not None:
        counts = Counter((key, IMPORTED_REASON) for key in found.problems)
        write_output(problems_out, encode_problems(counts, ()), "--problems-out")
    print_report(found, spell, document_of_import, as_json=as_json)
    if problems_out is not None:
        say(f"wrote {problems_out}: {counted(len(found.problems), 'problem')}")
    if not found.problems or (verified is not None and verified.open):
        raise typer.Exit(EXIT_FOUND)


def spell(found: ImportedFiles) -> Iterator[str]:
    """Yield what was read, what could not be mapped and why, and what is unverified."""
    line = partial(fold, indent=2, width=terminal_width())
    problems = found.problems
    total = len(found.entries)
    with_config = [one for one in problems.values() if one.config is not None]
    yield (
        f"{total} {'entry' if total == 1 else 'entries'} read: "
        f"{counted(len(problems), 'problem')}, {len(with_config)} with a complete config"
    )
    if problems:
        yield from line(ASSUMED)
    lacking = [one for one in problems.values() if one.config is None]
    yield from _reasons("without a config", [(one.origin, one.key, one.lacks) for one in lacking])
    if found.skipped_files:
        yield f"{counted(found.skipped_files, 'file')} skipped, which cannot be read"
    unmapped = [(one.origin, one.what, one.reason) for one in found.unmapped]
    yield from _reasons("not mapped", unmapped)
    if found.into is not None:
        yield from _spell_table(found.into, found.verified)


def _reasons(head: str, entries: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    for origin, what, reason in entries[:_SHOWN_REASONS]:
        yield from fold(f"{head}: {origin}: {what}: {reason}", indent=2, width=terminal_width())
    if len(entries) > _SHOWN_REASONS:
        yield f"{head}: {len(entries) - _SHOWN_REASONS} more; --json lists all"


def _spell_table(into: ImportedTable, verified: Verification | None) -> Iterator[str]:
    line = partial(fold, indent=2, width=terminal_width())
    if into.with_row:
        yield from line(f"{len(into.with_row)} have a row already, which stays: it was measured")
    if into.left_out:
        yield from line(
            f"{counted(sum(into.left_out.values()), 'config')} of "
            f"{counted(len(into.left_out), 'key')} left out: a table holds the {MAX_CONFIGS} "
            "fastest imported configs of a key; those without a time come last"
        )
    open_keys = into.table.imported if verified is None else verified.open
    if verified is not None:
        yield from line(
            f"verified: imported configs of {counted(len(verified.confirmed), 'key')} confirmed, "
            f"of {len(verified.refuted)} slower than the library's kernel, wrong or not built here"
        )
        for key, why in verified.open.items():
            yield from line(f"still unverified: {key}: {why}")
    yield from line(
        f"{into.path}: {counted(len(open_keys), 'key')} with imported, unverified configs, which "
        "are not served, except with --on-miss unverified"
    )


def document_of_import(found: ImportedFiles) -> dict[str, Any]:
    """Return *found* as JSON values."""
    into, verified = found.into, found.verified
    return {
        "problems": [
            {
                "key": one.key,
                "origin": one.origin,
                "winner": None if one.config is None else str(one.config.winner),
                "lacks": one.lacks or None,
            }
            for one in found.problems.values()
        ],
        "skipped_files": found.skipped_files,
        "unmapped": [
            {"origin": one.origin, "what": one.what, "reason": one.reason} for one in found.unmapped
        ],
        "assumed": ASSUMED,
        "table": None if into is None else str(into.path),
        "with_row": [] if into is None else list(into.with_row),
        "left_out": {} if into is None else dict(into.left_out),
        "verified": None
        if verified is None
        else {
            "confirmed": list(verified.confirmed),
            "refuted": list(verified.refuted),
            "open": verified.open,
        },
    }
