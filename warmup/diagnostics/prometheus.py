"""`expose`: an audit as metrics, for a Prometheus textfile collector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from warmup.core.error_text import printable
from warmup.diagnostics.audit import AuditReport

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\""})

# Metric, type, help, field of `Counts`, and the label of its keys where the field is a mapping.
BY_TABLE: Final = (
    ("runs", "gauge", "Installed tables, each in one process.", "runs", None),
    ("silent_runs", "gauge", "Runs without any decision.", "silent", None),
    ("hits_total", "counter", "Decisions answered by a row.", "hits", None),
    ("misses_total", "counter", "Decisions answered by no row.", "misses", "reason"),
    ("tuned_total", "counter", "Problems measured while serving.", "tuned", None),
    ("uncovered_total", "counter", "Measurements of no row kind.", "uncovered", "site"),
    ("cached_graphs_total", "counter", "Graphs from inductor's caches.", "from_cache", None),
    ("cached_decisions_total", "counter", "Decisions in those graphs.", "cached_decisions", None),
    ("cached_misses_total", "counter", "Of those, answered by no row.", "cached_misses", None),
    ("foreign_graphs_total", "counter", "Graphs of another table.", "foreign", "compiled_under"),
    ("outside_total", "counter", "Calls that no artifact served.", "outside", "reason"),
)


def expose(report: AuditReport) -> str:
    """Return *report* in Prometheus' text format 0.0.4, in a fixed order.

    Counts of one table have its digest as a label. ``warmup_unused_rows`` has no sample when the
    unused rows are unknown.
    """
    lines: list[str] = []
    for name, kind, help_text, field, label in BY_TABLE:
        lines += _header(name, kind, help_text)
        for digest, counts in report.by_digest.items():
            for labels, value in _samples(getattr(counts, field), label):
                lines.append(_sample(name, {"digest": digest, **labels}, value))
    totals = (
        ("unused_rows", "Rows that no run asked for.", report.unused),
        ("diverged", "Keys and tables on which runs disagree.", report.diverged),
        ("contradicted_options", "Options that differ from the policy.", report.contradictions),
        ("unfinished_runs", "Runs without a summary: killed, or running.", report.unfinished),
    )
    for name, help_text, items in totals:
        lines += _header(name, "gauge", help_text)
        lines += [] if items is None else [_sample(name, {}, len(items))]
    lines += _header("failed_installs", "gauge", "Processes that could not install the table.")
    lines.append(_sample("failed_installs", {}, report.failed))
    lines += _header("damaged_lines", "gauge", "Event lines that cannot be read.")
    lines.append(_sample("damaged_lines", {}, report.damaged))
    return "".join(f"{line}\n" for line in lines)


def _header(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP warmup_{name} {help_text}", f"# TYPE warmup_{name} {kind}"]


def _samples(value: Any, label: str | None) -> Iterator[tuple[dict[str, str], int]]:
    if label is None:
        yield {}, value
    else:
        yield from (({label: key}, count) for key, count in sorted(value.items()))


def _sample(name: str, labels: Mapping[str, str], value: int) -> str:
    # Texts from logs are not trusted: some readers end a line at more characters than LF.
    pairs = (f'{label}="{printable(text).translate(_ESCAPES)}"' for label, text in labels.items())
    return f"warmup_{name}{'{' + ','.join(pairs) + '}' if labels else ''} {value}"
