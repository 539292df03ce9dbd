"""`warmup show --review`: the times of tables that cannot be true, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from warmup.cli.output import fold, spell_peaks
from warmup.core.counted import counted
from warmup.diagnostics.review import (
    Doubt,
    Level,
    Reviewed,
    peaks_in,
    review,
    review_table,
    share_at_least,
)
from warmup.table.store import read

_LEVEL_HEADS: Final = {
    Level.WRONG: "probably wrong: measure again",
    Level.LOOK: "to look at: explain, or measure again",
}
DoubtedTables = Mapping[Path, tuple[Reviewed, tuple[Doubt, ...]]]


def review_files(paths: Sequence[Path], peaks: Path | None) -> DoubtedTables:
    """Return the times of each table of *paths* and what is doubtful of them, the worst first.

    Raises:
        TableError: a table, or the table *peaks* with other peaks, cannot be read.
        SettingsError: *peaks* has no measured peaks.
    """
    given = None if peaks is None else peaks_in(peaks)
    tables = {path: review_table(read(path), given) for path in paths}
    return {path: (reviewed, review(reviewed)) for path, reviewed in tables.items()}


def fails_on(tables: DoubtedTables, level: Level | None) -> bool:
    """Return whether *tables* have a doubt of *level*, or a worse; never without a level."""
    failing = list(Level)[: list(Level).index(level) + 1] if level is not None else []
    return any(doubt.level in failing for _, doubts in tables.values() for doubt in doubts)


def spell_review(tables: DoubtedTables) -> Iterator[str]:
    """Yield for each table its peaks and its doubts, the worst first, with the reason of each."""
    for path, (reviewed, doubts) in tables.items():
        count = counted(len(reviewed.measurements), "number")
        yield from fold(f"{path}: {count}, {_tally(doubts)}", indent=2)
        yield from fold(_peaks(reviewed), "  ", indent=4)
        for level, head in _LEVEL_HEADS.items():
            those = [doubt for doubt in doubts if doubt.level is level]
            if those:
                yield f"{head} ({len(those)})"
            for doubt in those:
                yield from fold(doubt.subject, "  ", indent=4)
                yield from fold(doubt.reason, "      ", indent=6)


def document_of_review(tables: DoubtedTables) -> list[dict[str, Any]]:
    """Return the peaks and the doubts of each table as JSON values, with the share of each number.

    A share is the least that a number can mean; null where its work or the peaks are unknown.
    """
    return [
        {
            "file": str(path),
            "peaks": None if reviewed.peaks is None else asdict(reviewed.peaks),
            "peaks_origin": reviewed.origin,
            "doubts": [asdict(doubt) for doubt in doubts],
            "numbers": [
                {
                    "subject": one.subject,
                    "time_us": one.time_us,
                    "share": share_at_least(reviewed, one),
                }
                for one in reviewed.measurements
            ],
        }
        for path, (reviewed, doubts) in tables.items()
    ]


def _tally(doubts: Sequence[Doubt]) -> str:
    if not doubts:
        return "nothing to doubt"
    wrong = sum(doubt.level is Level.WRONG for doubt in doubts)
    return f"{wrong} probably wrong, {len(doubts) - wrong} to look at"


def _peaks(reviewed: Reviewed) -> str:
    unknown = sum(one.work is None for one in reviewed.measurements)
    without = f"; {counted(unknown, 'number')} without a known work" if unknown else ""
    if reviewed.peaks is None:
        return f"no measured peaks: no shares (--peaks TABLE){without}"
    return f"{spell_peaks(reviewed.peaks, reviewed.peaks.tflops)}, {reviewed.origin}{without}"
