"""Reports as text for people and as JSON for machines, on stdout."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from warmup.choice import Flag, Rejection, Row, Tuned
from warmup.errors import SettingsError, printable
from warmup.judging import rejections
from warmup.kernel import LAUNCH
from warmup.kind import Kind
from warmup.kinds import KINDS, ingredients_of, kind_of, natural_order
from warmup.outcome import BuildReport
from warmup.peaks import Peaks
from warmup.problem import GEMM
from warmup.table import Table
from warmup.table.codec import digest_of, encode
from warmup.table.merge import Difference
from warmup.weight import WEIGHT

_WIDE = 10_000
_SHOWN = 20
_EXPECTED = {None, Rejection.COMPILE, Rejection.LAUNCH}  # configs that are too large for a device
_QUESTIONS = {"gemm": ("epilogue",), "pad": (), "launch": (), "weight": ("via",)}
_CONFIG_MAP_BYTES = 1024 * 1024


def print_build(report: BuildReport) -> None:
    """Print the closing table of a build, then where the table is."""
    grid = _grid("bucket", "op", "epilogue", "winner", "us", "library us", "speed-up")
    for result in report.buckets:
        for key in result.keys:
            named, row = ingredients_of(key), report.table.rows[key]
            if kind_of(key) in (LAUNCH, WEIGHT):
                continue
            shape = f"{named['op']} {named['n']}x{named['k']}"
            question = named.get("epilogue", named.get("kind"))
            grid.add_row(str(result.bucket), shape, question, *_row_cells(row))
    console = _console()
    console.print(grid)
    launches = {key for result in report.buckets for key in result.keys if kind_of(key) is LAUNCH}
    if launches:
        gain = _mean_gain([report.table.rows[key] for key in launches])
        console.print(f"{len(launches)} launch configs{gain}", soft_wrap=True)
    if report.uncovered:
        sites = ", ".join(f"{site} {count}" for site, count in sorted(report.uncovered.items()))
        console.print(f"measured at serving although all rows are there: {sites}", soft_wrap=True)
    size = report.path.stat().st_size
    if size > _CONFIG_MAP_BYTES:
        sys.stderr.write(f"note: {report.path} has {size} bytes, more than a ConfigMap holds\n")
    if report.peaks is not None:
        console.print(_peaks_in_words(report.peaks), soft_wrap=True)
    _print_doubts(console, report)
    console.print(
        f"{report.path}: {len(report.table.rows)} rows, {len(report.timings)} tuned now"
        f"{_rejected_in_words(report)}, "
        f"{f'{len(report.known)} known, ' if report.known else ''}{report.seconds:.1f} s, "
        f"digest {report.digest[:16]}",
        soft_wrap=True,
    )
    for what, keys in (
        ("not rebuilt", report.not_rebuilt),
        ("not tuned", report.not_tuned),
        ("measured without its epilogue", report.not_fused),
    ):
        for key, reason in keys.items():
            _say(f"{what}: {key}: {reason}")


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
    for flag in (Flag.UNSTABLE, Flag.OVER_PEAK, Flag.FAR_BELOW_PEAK):
        keys = [one.key for one in report.timings if flag in one.row.evidence.flags]
        for key in keys[:_SHOWN]:
            console.print(f"{flag}: {key}", soft_wrap=True)
        if len(keys) > _SHOWN:
            console.print(f"{flag}: {len(keys) - _SHOWN} more rows", soft_wrap=True)
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


def print_build_json(report: BuildReport) -> None:
    """Print everything a build found, every candidate's time included."""
    _print_json(
        {
            "path": str(report.path),
            "digest": report.digest,
            "rows": len(report.table.rows),
            "seconds": round(report.seconds, 3),
            "buckets": [
                {
                    "bucket": dict(result.bucket.sizes),
                    "keys": list(result.keys),
                    "tuned": result.tuned,
                    "error": result.error,
                    "uncovered": dict(result.uncovered),
                    "seconds": round(result.seconds, 3),
                }
                for result in report.buckets
            ],
            "problems": [_timings(tuned) for tuned in report.timings],
            "known": list(report.known),
            "not_rebuilt": dict(report.not_rebuilt),
            "not_tuned": dict(report.not_tuned),
            "not_fused": dict(report.not_fused),
            "peaks": None if report.peaks is None else dataclasses.asdict(report.peaks),
        }
    )


def write_timings(report: BuildReport, path: Path) -> None:
    """Write one JSON line for each problem tuned now, with every candidate's time.

    Raises:
        SettingsError: *path* cannot be written.
    """
    lines = [json.dumps(_timings(tuned)) + "\n" for tuned in report.timings]
    try:
        path.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"--timings {path}: {error.strerror}", "name a writable file"
        ) from error


def print_table(table: Table, op: str | None, bucket: str | None) -> None:
    """Print the rows of *table*, filtered by op and by m."""
    runtime = table.provenance.runtime
    console = _console()
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
        grid = _grid(kind.name, *_QUESTIONS[kind.name], "winner", "us", "library us", "speed-up")
        for key in own:
            grid.add_row(*_spelled(kind, key), *_row_cells(table.rows[key]))
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
    _print_json(document)


def print_difference(difference: Difference) -> None:
    """Print what differs, one line each, in the manner of diff."""
    for line in difference.context:
        _say(f"! {line}")
    for key in difference.only_a:
        _say(f"- {key}")
    for key in difference.only_b:
        _say(f"+ {key}")
    for key, a, b in difference.changed:
        _say(f"~ {key}")
        _say(f"    a {a.winner} {a.evidence.time_us:.1f} us")
        _say(f"    b {b.winner} {b.evidence.time_us:.1f} us")
    if difference.is_empty:
        sys.stderr.write("no difference\n")


def print_difference_json(difference: Difference) -> None:
    """Print what differs as JSON."""
    _print_json(
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


def _say(line: str) -> None:
    """Print one line; logs and tables are untrusted, so nothing in it can drive a terminal."""
    sys.stdout.write(printable(line) + "\n")


def _grid(*columns: str) -> Grid:
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


def _console() -> Console:
    """A console on stdout: as wide as the terminal, or wide enough for whole lines in a file."""
    width = None if sys.stdout.isatty() else _WIDE
    return Console(markup=False, highlight=False, width=width)


def _spelled(kind: Kind, key: str) -> tuple[str, ...]:
    """Return the cells that spell *key*: what the row's kind says already is left out."""
    problem, _, epilogue = key.partition(" | epilogue=")
    if kind is LAUNCH:
        return (problem.removeprefix("launch ").partition(" args=")[0],)
    return (problem, epilogue) if kind is GEMM else (problem.removeprefix("pad "),)


def _mean_gain(rows: list[Row]) -> str:
    """Return how much faster the winners of *rows* are than inductor's first config, on average."""
    ratios = [
        row.evidence.library_us / row.evidence.time_us for row in rows if row.evidence.library_us
    ]
    if not ratios:
        return ""
    return f", {statistics.geometric_mean(ratios):.2f}x over the config inductor lists first"


def _row_cells(row: Row) -> tuple[str, str, str, str]:
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


def _timings(tuned: Tuned) -> dict[str, Any]:
    return {
        "key": tuned.key,
        "winner": str(tuned.row.winner),
        "candidates": [
            {
                "choice": str(timing.winner),
                "time_us": timing.time_us,
                "fused_us": timing.fused_us,
                "rejection": timing.rejection,
                "said": timing.said,
            }
            for timing in tuned.timings
        ],
    }


def _print_json(document: Any) -> None:
    json.dump(document, sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")
