"""What a build found: as text for people, as JSON for machines, and every timing as JSON lines."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from warmup.buckets.bucket import Bucket
from warmup.cli.render import make_console, make_grid, print_json, row_cells, say
from warmup.core.errors import SettingsError, printable
from warmup.core.roofline import Peaks
from warmup.core.rows import Flag, Rejection, Row, Tuned
from warmup.core.search import search_to_json
from warmup.keys.registry import KINDS, kind_of
from warmup.measuring.range_regret import worst_regret_over_bound
from warmup.measuring.selection import rejections
from warmup.tuning.report import BuildReport

_SHOWN: Final = 20
_EXPECTED: Final = {None, Rejection.COMPILE, Rejection.LAUNCH}  # too large for a device
_CONFIG_MAP_BYTES: Final = 1024 * 1024


def print_build(report: BuildReport) -> None:
    """Print the closing table of a build, then where the table is.

    Of a bucket with padded weights it has what the bucket did not ask with the weights as they are.
    """
    grid = make_grid("bucket", "op", "epilogue", "winner", "us", "library us", "speed-up")
    shown: set[tuple[Bucket, str]] = set()
    for result in report.buckets:
        for key in result.keys:
            kind = kind_of(key)
            if kind.summary is not None or (result.bucket, key) in shown:
                continue
            shown.add((result.bucket, key))
            question = kind.ingredients(key).get(kind.question or "", kind.name)
            grid.add_row(result.name, kind.brief(key), question, *row_cells(report.table.rows[key]))
    console = make_console()
    console.print(grid)
    asked = {key for result in report.buckets for key in result.keys}
    for kind in KINDS.values():
        own = [report.table.rows[key] for key in asked if kind_of(key) is kind]
        if own and kind.summary is not None:
            gain = _mean_gain(own, kind.library_default)
            console.print(f"{len(own)} {kind.summary}{gain}", soft_wrap=True)
    if report.uncovered:
        sites = ", ".join(f"{site} {count}" for site, count in sorted(report.uncovered.items()))
        console.print(f"measured at serving although all rows are there: {sites}", soft_wrap=True)
    size = report.path.stat().st_size
    if size > _CONFIG_MAP_BYTES:
        sys.stderr.write(f"note: {report.path} has {size} bytes, more than a ConfigMap holds\n")
    if report.peaks is not None:
        console.print(_peaks_in_words(report.peaks), soft_wrap=True)
    _print_doubts(console, report)
    _print_end(console, report)


def _print_end(console: Console, report: BuildReport) -> None:
    """Print where everything is, and what is not in it."""
    console.print(
        f"{report.path}: {len(report.table.rows)} rows, {len(report.timings)} tuned now"
        f"{_rejected_in_words(report)}, "
        f"{f'{len(report.known)} known, ' if report.known else ''}{report.seconds:.1f} s, "
        f"digest {report.digest[:16]}",
        soft_wrap=True,
    )
    if report.bundle is not None:
        console.print(str(report.bundle), soft_wrap=True)
    for what, keys in (
        ("not rebuilt", report.not_rebuilt),
        ("not tuned", report.not_tuned),
        ("measured without its epilogue", report.not_fused),
    ):
        for key, reason in keys.items():
            say(f"{what}: {key}: {reason}")


def _rejected_in_words(report: BuildReport) -> str:
    counts = rejections(report.timings)
    said = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    return f" (rejected candidates: {said})" if said else ""


def _peaks_in_words(peaks: Peaks) -> str:
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in sorted(peaks.tflops.items()))
    return (
        f"peaks of this device, measured {peaks.measured}: {peaks.gbps:.0f} GB/s; TFLOP/s {rates}"
    )


def _print_doubts(console: Console, report: BuildReport) -> None:
    """Print what was padded, the rows that a reader should look at, and what misbehaved."""
    if report.prepared is not None and (report.prepared.padded or report.prepared.left):
        for line in str(report.prepared).splitlines():
            console.print(printable(line), soft_wrap=True)
    if report.prepared is not None and report.prepared.padded:
        console.print(
            f'to serve it so: warmup.install("{report.path}", model=model); '
            "without model= the rows for weights as they are answer",
            soft_wrap=True,
        )
    for flag in (Flag.UNSTABLE, Flag.OVER_PEAK, Flag.FAR_BELOW_PEAK):
        keys = [one.key for one in report.timings if flag in one.row.evidence.flags]
        for key in keys[:_SHOWN]:
            console.print(f"{flag}: {key}", soft_wrap=True)
        if len(keys) > _SHOWN:
            console.print(f"{flag}: {len(keys) - _SHOWN} more rows", soft_wrap=True)
    for split in _splits(report):
        console.print(str(split), soft_wrap=True)
    bad = [
        f"{timing.rejection}: {timing.winner.short} for {tuned.key}: {timing.said}"
        for tuned in report.timings
        for timing in tuned.timings
        if timing.rejection not in _EXPECTED
    ]
    for line in bad[:_SHOWN]:
        console.print(line, soft_wrap=True)
    if len(bad) > _SHOWN:
        console.print(f"{len(bad) - _SHOWN} more candidates misbehaved: --timings lists all")


@dataclasses.dataclass(frozen=True, slots=True)
class _Split:
    """A bucket whose winners are too slow somewhere in its range, and the one to add."""

    bucket: str
    keys: tuple[str, ...]
    size: int
    ratio: float
    add: Bucket

    def __str__(self) -> str:
        count = "1 row is" if len(self.keys) == 1 else f"{len(self.keys)} rows are"
        return (
            f"{self.bucket}: {count} up to {self.ratio:.2f}x as slow as the best at size "
            f"{self.size}: add the bucket {self.add}"
        )


def _splits(report: BuildReport) -> list[_Split]:
    """Return which buckets to split: some winner's regret is above the bound in their range."""
    from warmup.models.dynamic_inputs import sizes_within  # needs torch, which a build has loaded

    found = []
    for result in report.buckets:
        rows = ((key, report.table.rows[key]) for key in result.keys)
        over = {key: worst for key, row in rows if (worst := worst_regret_over_bound(row.evidence))}
        if over and (within := sizes_within(result.bucket)):
            size, ratio = max(over.values(), key=lambda worst: worst[1])
            found.append(_Split(result.name, tuple(over), size, ratio, within[-1]))
    return found


def print_build_json(report: BuildReport) -> None:
    """Print everything a build found, every candidate's time included."""
    print_json(
        {
            "path": str(report.path),
            "digest": report.digest,
            "rows": len(report.table.rows),
            "seconds": round(report.seconds, 3),
            "buckets": [
                {
                    "bucket": dict(result.bucket.sizes),
                    "weights_padded": result.weights_padded,
                    "keys": list(result.keys),
                    "tuned": result.tuned,
                    "error": result.error,
                    "uncovered": dict(result.uncovered),
                    "seconds": round(result.seconds, 3),
                    "left_out": result.left_out,
                }
                for result in report.buckets
            ],
            "problems": [_timings(tuned) for tuned in report.timings],
            "known": list(report.known),
            "not_rebuilt": dict(report.not_rebuilt),
            "not_tuned": dict(report.not_tuned),
            "not_fused": dict(report.not_fused),
            "splits": [
                {**dataclasses.asdict(split), "add": dict(split.add.sizes)}
                for split in _splits(report)
            ],
            "peaks": None if report.peaks is None else dataclasses.asdict(report.peaks),
            "bundle": None
            if report.bundle is None
            else {**dataclasses.asdict(report.bundle), "path": str(report.bundle.path)},
        }
    )


@contextlib.contextmanager
def writing_timings(path: Path | None) -> Iterator[Callable[[Tuned], None]]:
    """Give a function that adds one problem's line to *path*, at once: it survives the build.

    What was in *path* before is gone when this is entered. Without a path nothing is written.

    Raises:
        SettingsError: *path* cannot be written.
    """
    if path is None:
        yield lambda _tuned: None
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"--timings {path}: {error.strerror}", "name a writable file"
        ) from error

    def note(tuned: Tuned) -> None:
        file.write(json.dumps(_timings(tuned)) + "\n")
        file.flush()

    with file:
        yield note


def _mean_gain(rows: list[Row], library_default: str) -> str:
    """Return how much faster the winners of *rows* are than the *library_default*, on average."""
    ratios = [
        row.evidence.library_us / row.evidence.time_us for row in rows if row.evidence.library_us
    ]
    if not ratios:
        return ""
    return f", {statistics.geometric_mean(ratios):.2f}x over {library_default}"


def _timings(tuned: Tuned) -> dict[str, Any]:
    return {
        "key": tuned.key,
        "winner": str(tuned.row.winner),
        "searched": None if tuned.searched is None else search_to_json(tuned.searched),
        "candidates": [
            {
                "choice": str(timing.winner),
                "time_us": timing.time_us,
                "fused_us": timing.fused_us,
                "along_us": dict(timing.along_us),
                "rejection": timing.rejection,
                "said": timing.said,
            }
            for timing in tuned.timings
        ],
    }
