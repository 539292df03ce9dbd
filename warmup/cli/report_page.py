"""`report_page`: a table with its gains, flags, starts, profiles and audit as one page of HTML.

Each part names the file that its figures come from, and the command that prints them.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warmup.cli.audit import AuditFormat, spell
from warmup.cli.html_page import (
    HtmlCell,
    html_heading,
    html_lines,
    html_page,
    html_paragraph,
    html_table,
)
from warmup.cli.output import ABSENT, digits, times
from warmup.cli.profile_page import bucket_part
from warmup.cli.show_render import row_cells, select_keys, spell_origin_of
from warmup.diagnostics.audit import AuditReport
from warmup.diagnostics.profile.profile import Profile
from warmup.diagnostics.review.measurement import Doubt
from warmup.keys.registry import KINDS, kind_of
from warmup.table import Table

_DRAWN_GAIN: Final = 2.0  # the speed-up that fills a bar
_REPORTED_HEAD: Final = (
    "saved us",
    "speed-up",
    "us",
    "library us",
    "spread",
    "flags",
    "row and winner",
)
_BUCKET_HEAD: Final = ("bucket", "variant", "median us", "interval", "speed-up", "agrees")
_START_HEAD: Final = (
    *("variant", "process s", "first calls s", "measurements", "hits", "misses"),
    "verdict",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportParts:
    """What a report shows: the table and, of files that were named, what was read from them.

    ``comparisons`` are `comparison_part` of each, ``audit`` the names of logs and the audit of all
    of them; ``command`` is the command of the report.
    """

    name: str
    table: Table
    doubts: Sequence[Doubt]
    comparisons: Sequence[str]
    profiles: Sequence[tuple[str, Profile]]
    audit: tuple[Sequence[str], AuditReport] | None
    command: str


def report_page(parts: ReportParts, most: int) -> str:
    """Return the page on *parts*, with at most *most* rows: those that save most."""
    return html_page(f"warmup report: {parts.name}", _sections(parts, most))


def _sections(parts: ReportParts, most: int) -> Iterator[str]:
    yield html_heading(f"warmup report: {parts.name}", 1)
    yield from map(html_paragraph, spell_origin_of(parts.table, None))
    yield from _gains(parts.table)
    yield from _rows(parts.table, most)
    yield from _doubts(parts)
    yield from parts.comparisons
    for name, profile in parts.profiles:
        yield html_heading(f"Profile of {name}")
        yield html_paragraph(profile.device)
        for bucket in profile.buckets:
            yield from bucket_part(bucket, 3)
        yield _source("warmup", "profile", name, "--table", parts.name)
    if parts.audit is not None:
        yield from _audit(*parts.audit, parts.name)
    yield html_heading("How this page was made")
    yield html_lines([parts.command])


def _gains(table: Table) -> Iterator[str]:
    """Yield what the rows of each kind save over the library default, in the build's own times."""
    yield html_heading("Gains")
    yield html_paragraph(
        "Times of the build, one call of each row: the winner's, and that of the library default "
        "where it was measured. They are no latency of a model, which compare measures. Rows that "
        "are not trusted are left out."
    )
    rows = []
    for kind in KINDS.values():
        own = [
            row for key, row in table.rows.items() if kind_of(key) is kind and row.untrusted is None
        ]
        if not own:
            continue
        known = [
            (row.evidence.library_us, row.evidence.time_us)
            for row in own
            if row.evidence.library_us is not None
        ]
        library, winner = sum(pair[0] for pair in known), sum(pair[1] for pair in known)
        better = sum(pair[0] > pair[1] for pair in known)
        cells = (
            *(kind.name, str(len(own)), str(len(known)), str(better)),
            *(digits(library), digits(winner)),
            times(library / winner if winner else None),
        )
        rows.append([HtmlCell(cell) for cell in cells])
    head = ("kind", "rows", "with a library time", "faster", "library us", "winner us", "ratio")
    yield from html_table(head, rows, texts=(0,), caption="Sums over the rows of each kind")


def _rows(table: Table, most: int) -> Iterator[str]:
    def saved(key: str) -> float:
        evidence = table.rows[key].evidence
        return 0.0 if evidence.library_us is None else evidence.library_us - evidence.time_us

    keys = sorted(select_keys(table), key=saved, reverse=True)
    yield html_heading("Rows")
    shown = f"the {most} that save most of {len(keys)} rows" if len(keys) > most else "all rows"
    caption = f"{shown}, those first that save most per call; a bar is full at {_DRAWN_GAIN:g}x"
    rows = (_row(table, key, saved(key)) for key in keys[:most])
    yield from html_table(_REPORTED_HEAD, rows, texts=(6,), caption=caption)


def _row(table: Table, key: str, saved: float) -> tuple[HtmlCell, ...]:
    row = table.rows[key]
    evidence = row.evidence
    winner, us, library, gain = row_cells(row)
    known = evidence.library_us is not None
    ratio = evidence.library_us / evidence.time_us if evidence.library_us is not None else 1.0
    said = winner if row.untrusted is None else f"{winner}: {row.untrusted}"
    flags = [*evidence.flags, *(["not trusted"] if row.untrusted is not None else [])]
    return (
        HtmlCell(digits(saved) if known else ABSENT),
        HtmlCell(gain, share=(ratio - 1) / (_DRAWN_GAIN - 1), is_bad=ratio < 1),
        HtmlCell(us),
        HtmlCell(library),
        HtmlCell(ABSENT if evidence.spread is None else f"{evidence.spread:.1%}"),
        HtmlCell(", ".join(flags) or ABSENT, is_bad=row.untrusted is not None),
        HtmlCell(key, said, is_code=True),
    )


def _doubts(parts: ReportParts) -> Iterator[str]:
    """Yield the flags of the rows, and what review doubts."""
    rows = parts.table.rows.values()
    flags = Counter(flag for row in rows for flag in row.evidence.flags)
    untrusted = sum(row.untrusted is not None for row in rows)
    yield html_heading("Flags and doubts")
    named = [f"{count} {flag}" for flag, count in sorted(flags.items())]
    named += [f"{untrusted} not trusted, which are not served"] if untrusted else []
    yield html_paragraph(f"Flags: {', '.join(named) or 'none'}.")
    if parts.doubts:
        rows_of = ([HtmlCell(one.level), *_doubt_cells(one)] for one in parts.doubts)
        yield from html_table(("level", "number", "reason"), rows_of, texts=(0, 1, 2))
    else:
        yield html_paragraph("Review has nothing to doubt.")
    yield _source("warmup", "review", parts.name)


def _doubt_cells(doubt: Doubt) -> Iterator[HtmlCell]:
    yield from (HtmlCell(doubt.subject, is_code=True), HtmlCell(doubt.reason))


def comparison_part(name: str, document: Mapping[str, Any]) -> Iterator[str]:
    """Yield starts, verdicts and latencies in *document*, which `warmup compare` wrote as *name*.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, OverflowError: it has another form.
    """
    origin = document["origin"]
    device = origin["runtime"]["device"]["name"]
    yield html_heading(f"Starts and latencies: {name}")
    yield html_paragraph(
        f"{origin['model']} ({origin['dtype']}) on {device}, torch {origin['runtime']['torch']}, "
        f"{origin['created']}; every start from empty caches."
    )
    yield from html_table(
        _START_HEAD, map(_start, document["variants"]), texts=(0, 6), caption="Starts"
    )
    rows = (
        _latency(bucket["bucket"], cell)
        for bucket in document["buckets"]
        for cell in bucket["variants"]
    )
    yield from html_table(_BUCKET_HEAD, rows, texts=(0, 1), caption="Latencies of one call")
    for remark in document["remarks"]:
        yield html_paragraph(str(remark))
    yield html_paragraph(
        f"Figures of: warmup compare --model ... --table ... --out FOLDER, which wrote {name}"
    )


def _start(variant: Mapping[str, Any]) -> Sequence[HtmlCell]:
    start, failure = variant["start"], variant["failure"]
    said = HtmlCell(str(failure or variant["verdict"] or ABSENT), is_bad=failure is not None)
    if start is None:
        return [HtmlCell(str(variant["name"])), *[HtmlCell(ABSENT)] * 5, said]
    calls = start["call_seconds"]
    known = (start[name] for name in ("benchmarks", "hits", "misses"))
    counts = (ABSENT if count is None else str(count) for count in known)
    figures = (f"{start['process_seconds']:.1f}", f"{calls:.1f}", *counts)
    return [HtmlCell(str(variant["name"])), *map(HtmlCell, figures), said]


def _latency(sizes: Mapping[str, Any], cell: Mapping[str, Any]) -> tuple[HtmlCell, ...]:
    low, high = cell["interval_us"] or (None, None)
    speedup, agrees = cell["speedup"], cell["agrees"]
    value = None if speedup is None else float(speedup["value"])
    return (
        HtmlCell(", ".join(f"{name}={size}" for name, size in sizes.items())),
        HtmlCell(str(cell["name"])),
        HtmlCell(digits(cell["median_us"])),
        HtmlCell(ABSENT if low is None else f"{digits(low)} to {digits(high)}"),
        HtmlCell(times(value), share=None if value is None else (value - 1) / (_DRAWN_GAIN - 1)),
        HtmlCell({True: "yes", False: "no"}.get(agrees, ABSENT), is_bad=agrees is False),
    )


def _audit(names: Sequence[str], report: AuditReport, table: str) -> Iterator[str]:
    yield html_heading(f"Audit of {', '.join(names)}")
    if report.is_empty:
        yield html_paragraph("No event of warmup is in these logs: they say nothing.")
    counts = (
        ("runs", report.runs),
        ("hits", sum(report.hits.values())),
        ("misses", report.miss_count),
        ("uncovered", sum(report.uncovered.values())),
        ("foreign", sum(report.foreign.values())),
        ("silent runs", len(report.silent)),
        ("diverged", len(report.diverged)),
    )
    cells = [
        HtmlCell(str(count), is_bad=count > 0 and word not in ("runs", "hits"))
        for word, count in counts
    ]
    yield from html_table([word for word, _ in counts], [cells], caption="Counts of all logs")
    yield html_lines(spell(report, AuditFormat.TEXT).splitlines())
    yield _source("warmup", "audit", *names, "--table", table)


def _source(*words: str) -> str:
    return html_paragraph(f"Figures of: {shlex.join(words)}")
