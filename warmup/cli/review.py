"""`warmup review`: whether the numbers of a table, a comparison or a benchmark can be true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from warmup.cli import options
from warmup.cli.exit_codes import EXIT_FOUND
from warmup.cli.output import fold, print_report, spell_peaks
from warmup.core.counted import counted
from warmup.diagnostics.review.documents import peaks_in, review_file
from warmup.diagnostics.review.measurement import Doubt, Level, Reviewed
from warmup.diagnostics.review.rules import review as find_doubts
from warmup.diagnostics.review.rules import share_at_least

_HEADS = {
    Level.WRONG: "probably wrong: measure again",
    Level.LOOK: "to look at: explain, or measure again",
}


def review(
    files: Annotated[
        list[Path], typer.Argument(help="Tables, and JSON that compare or bench wrote.")
    ],
    *,
    peaks: options.PeaksOption = None,
    fail_on: Annotated[
        Level | None, typer.Option(help="Exit with code 1 for doubts of this level, or a worse.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List numbers that cannot be true, or that contradict each other."""
    given = None if peaks is None else peaks_in(peaks)
    found = [(path, review_file(path, given)) for path in files]
    doubts = {path: find_doubts(reviewed) for path, reviewed in found}
    print_report(
        found, partial(spell, doubts=doubts), partial(document, doubts=doubts), as_json=as_json
    )
    failing = list(Level)[: list(Level).index(fail_on) + 1] if fail_on is not None else []
    if any(doubt.level in failing for each in doubts.values() for doubt in each):
        raise typer.Exit(EXIT_FOUND)


def spell(
    found: Sequence[tuple[Path, Reviewed]], doubts: dict[Path, tuple[Doubt, ...]]
) -> Iterator[str]:
    """Yield for each file its peaks and its doubts, the worst first, with the reason of each."""
    for path, reviewed in found:
        own = doubts[path]
        count = counted(len(reviewed.measurements), "number")
        yield from fold(f"{path}: {count}, {_tally(own)}", indent=2)
        yield from fold(_peaks(reviewed), "  ", indent=4)
        for level, head in _HEADS.items():
            those = [doubt for doubt in own if doubt.level is level]
            if those:
                yield f"{head} ({len(those)})"
            for doubt in those:
                yield from fold(doubt.subject, "  ", indent=4)
                yield from fold(doubt.reason, "      ", indent=6)


def document(
    found: Sequence[tuple[Path, Reviewed]], doubts: dict[Path, tuple[Doubt, ...]]
) -> list[dict[str, Any]]:
    """Return the peaks and the doubts of each file as JSON values, with the share of each number.

    A share is the least that a number can mean; null where its work or the peaks are unknown.
    """
    return [
        {
            "file": str(path),
            "peaks": None if reviewed.peaks is None else asdict(reviewed.peaks),
            "peaks_origin": reviewed.origin,
            "doubts": [asdict(doubt) for doubt in doubts[path]],
            "numbers": [
                {
                    "subject": one.subject,
                    "time_us": one.time_us,
                    "share": share_at_least(reviewed, one),
                }
                for one in reviewed.measurements
            ],
        }
        for path, reviewed in found
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
        return f"no measured peaks: no shares (--peaks FILE){without}"
    return f"{spell_peaks(reviewed.peaks, reviewed.peaks.tflops)}, {reviewed.origin}{without}"
