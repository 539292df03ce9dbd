"""Counts of hits, misses and compiles as Prometheus metrics, of this process and of an audit.

A name that both write has the same meaning. prometheus_client is imported by `PrometheusCollector`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from warmup.core.errors import SettingsError
from warmup.core.text import printable
from warmup.serving.audit import AuditReport

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\""})
# Metric, help, field of an audit's `Counts`, and the label of its keys where it is a mapping. A
# metric whose name ends in ``_total`` is a counter, any other a gauge.
_BY_TABLE: Final = (
    ("runs", "Installed tables, each in one process.", "runs", None),
    ("silent_runs", "Runs without any decision.", "silent", None),
    ("mismatched_runs", "Processes that the table is not for.", "mismatch", None),
    ("hits_total", "Decisions answered by a row.", "hits", None),
    ("misses_total", "Decisions answered by no row.", "misses", "reason"),
    ("tuned_total", "Problems measured while serving.", "tuned", None),
    ("uncovered_total", "Measurements of no row kind.", "uncovered", "site"),
    ("cached_graphs_total", "Graphs from inductor's caches.", "from_cache", None),
    ("cached_decisions_total", "Decisions in those graphs.", "cached_decisions", None),
    ("cached_misses_total", "Of those, answered by no row.", "cached_misses", None),
    ("foreign_graphs_total", "Graphs of another table.", "foreign", "compiled_under"),
    ("weight_changes_total", "Graphs whose frozen weights were changed.", "changed", None),
    ("outside_total", "Calls that no artifact served.", "outside", "reason"),
)
# Not counted in a process: runs, and calls outside of artifacts.
_LIVE: Final = (
    *(each for each in _BY_TABLE if each[2] not in ("runs", "silent", "mismatch", "outside")),
    ("compiles_total", "Graphs compiled, or loaded from caches.", "compiles", None),
    ("compile_seconds_total", "Seconds in them, all threads together.", "compile_seconds", None),
)


def expose(report: AuditReport) -> str:
    """Return *report* in Prometheus' text format 0.0.4, in a fixed order.

    Counts of one table have its digest as a label. ``warmup_unused_rows`` has no sample when the
    unused rows are unknown.
    """
    lines: list[str] = []
    for name, help_text, field, label in _BY_TABLE:
        lines += _header(name, help_text)
        for digest, counts in report.by_digest.items():
            for key, value in _split(getattr(counts, field), label).items():
                labels = {"digest": digest} if label is None else {"digest": digest, label: key}
                lines.append(_sample(name, labels, value))
    contradicted = len(report.contradictions)
    totals = (
        ("diverged", "Keys and tables on which runs disagree.", len(report.diverged)),
        ("contradicted_options", "Options that differ from the policy.", contradicted),
        ("unfinished_runs", "Runs without a summary: killed, or running.", len(report.unfinished)),
        ("failed_installs", "Processes that could not install the table.", report.failed),
        ("damaged_lines", "Event lines that cannot be read.", report.damaged),
    )
    lines += _header("unused_rows", "Rows that no run asked for.")
    lines += [] if report.unused is None else [_sample("unused_rows", {}, len(report.unused))]
    for name, help_text, value in totals:
        lines += [*_header(name, help_text), _sample(name, {}, value)]
    return "".join(f"{line}\n" for line in lines)


class PrometheusCollector:
    """A collector for ``registry.register``: each scrape has the counts of that moment.

    It registers before or after a table is installed; without a table there are no samples. In
    prometheus_client's multiprocess mode no custom collector is asked; there each worker needs a
    registry and a port of its own.

    Raises:
        SettingsError: prometheus_client is not installed.
    """

    def __init__(self) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise SettingsError(
                "prometheus_client is not installed", 'pip install "inductor-warmup[metrics]"'
            ) from error
        self._core = core

    def collect(self) -> Iterator[Any]:
        """Yield the metrics with their samples; a registry knows their names from the metrics."""
        from warmup.serving.handle import installed

        handle = installed()
        report = None if handle is None else handle.report()
        digest = "" if report is None else report.digest[:16]
        gauge = self._core.GaugeMetricFamily(
            "warmup_installed", "1 while a table is installed in this process.", labels=["digest"]
        )
        if report is not None:
            gauge.add_metric([digest], 1.0 - report.mismatch)
        yield gauge
        for name, help_text, field, label in _LIVE:
            labels = ["digest", *([label] if label else [])]
            family = self._core.CounterMetricFamily(f"warmup_{name}", help_text, labels=labels)
            if report is not None:
                value = getattr(report, "miss_reasons" if field == "misses" else field)
                for key, count in _split(value, label).items():
                    family.add_metric([digest, *([key] if label else [])], float(count))
            yield family

    describe = collect


def _split(value: Any, label: str | None) -> Mapping[str, float]:
    """Return the counts by key, sorted, or without a *label* their total under no key."""
    if label is not None:
        return dict(sorted(value.items()))
    return {"": sum(value.values()) if isinstance(value, Mapping) else value}


def _header(name: str, help_text: str) -> list[str]:
    kind = "counter" if name.endswith("_total") else "gauge"
    return [f"# HELP warmup_{name} {help_text}", f"# TYPE warmup_{name} {kind}"]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    # Texts from logs are not trusted: some readers end a line at more characters than LF.
    pairs = (f'{label}="{printable(text).translate(_ESCAPES)}"' for label, text in labels.items())
    return f"warmup_{name}{'{' + ','.join(pairs) + '}' if labels else ''} {value}"
