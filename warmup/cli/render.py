"""Reports as text for people and as JSON for machines, on stdout."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from warmup.auditing import AuditReport
from warmup.building import BuildReport
from warmup.choice import Row, Tuned
from warmup.errors import SettingsError, printable
from warmup.kinds import ingredients_of, natural_order
from warmup.table import Table
from warmup.table.codec import digest_of, encode
from warmup.table.merge import Difference

_WIDE = 10_000
_CONFIG_MAP_BYTES = 1024 * 1024


def print_build(report: BuildReport) -> None:
    """Print the closing table of a build, then where the table is."""
    grid = _grid("bucket", "op", "epilogue", "winner", "us", "library us", "speed-up")
    for result in report.buckets:
        for key in result.keys:
            named, row = ingredients_of(key), report.table.rows[key]
            shape = f"{named['op']} {named['n']}x{named['k']}"
            grid.add_row(str(result.bucket), shape, named["epilogue"], *_row_cells(row))
    console = _console()
    console.print(grid)
    size = report.path.stat().st_size
    if size > _CONFIG_MAP_BYTES:
        sys.stderr.write(f"note: {report.path} has {size} bytes, more than a ConfigMap holds\n")
    failed = sum(tuned.row.evidence.failed for tuned in report.timings)
    console.print(
        f"{report.path}: {len(report.table.rows)} rows, {len(report.timings)} tuned now"
        f"{f' ({failed} candidates failed)' if failed else ''}, {report.seconds:.1f} s, "
        f"digest {report.digest[:16]}",
        soft_wrap=True,
    )


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
                    "seconds": round(result.seconds, 3),
                }
                for result in report.buckets
            ],
            "problems": [_timings(tuned) for tuned in report.timings],
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
        f"{table.provenance.warmup}, mode {table.policy.mode}, digest {digest_of(table)[:16]}",
        soft_wrap=True,
    )
    grid = _grid("problem", "epilogue", "winner", "us", "library us", "speed-up")
    keys = _filtered(table, op, bucket)
    for key in keys:
        problem, epilogue = key.split(" | epilogue=")
        grid.add_row(problem, epilogue, *_row_cells(table.rows[key]))
    console.print(grid)
    console.print(f"{len(keys)} of {len(table.rows)} rows")


def print_table_json(table: Table, op: str | None, bucket: str | None) -> None:
    """Print the document of *table* with only the filtered rows."""
    document = json.loads(encode(table))
    kept = set(_filtered(table, op, bucket))
    rows = document["rows"]["gemm"]
    document["rows"]["gemm"] = {key: row for key, row in rows.items() if key in kept}
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


def print_audit(report: AuditReport) -> None:
    """Print hits, misses by reason, uncovered work by site and rows never used."""
    digests = ", ".join(report.digests) or "none"
    _say(f"runs        {report.runs} (table digest {digests})")
    _say(f"hits        {sum(report.hits.values())} ({len(report.hits)} problems)")
    _say(f"misses      {report.miss_count}{_in_brackets(report.reasons)}")
    _say(f"uncovered   {sum(report.uncovered.values())}{_in_brackets(report.uncovered)}")
    _say(f"from cache  {report.from_cache} graphs ({report.cached_decisions} decisions)")
    if report.tuned:
        _say(f"tuned       {sum(report.tuned.values())} (on_miss=tune)")
    unused = "unknown: name the table with --table" if report.unused is None else len(report.unused)
    _say(f"unused rows {unused}")
    for line in report.contradictions:
        _say(f"contradicted option {line}")
    if report.silent:
        _say(f"silent runs {', '.join(report.silent)}")
    if report.damaged:
        _say(f"unreadable  {report.damaged} event lines")
    for miss in report.misses:
        _say(f"miss x{miss.count} {miss.key} ({miss.reason})")
        if miss.choice:
            _say(f"    compiled {miss.choice}")
        if miss.nearest:
            _say(f"    nearest {miss.nearest}")
            _say(f"    differs in {', '.join(miss.differs)}")
    for key in report.unused or ():
        _say(f"unused {key}")


def print_audit_json(report: AuditReport) -> None:
    """Print the audit as JSON."""
    _print_json(
        {**asdict(report), "miss_count": report.miss_count, "reasons": dict(report.reasons)}
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
        return op in (None, named["op"]) and bucket in (None, named["m"])

    return sorted((key for key in table.rows if matches(key)), key=natural_order)


def _timings(tuned: Tuned) -> dict[str, Any]:
    return {
        "key": tuned.key,
        "winner": str(tuned.row.winner),
        "candidates": [
            {"choice": str(timing.winner), "time_us": timing.time_us} for timing in tuned.timings
        ],
    }


def _in_brackets(counts: Any) -> str:
    text = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return f" ({text})" if text else ""


def _print_json(document: Any) -> None:
    json.dump(document, sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")
