"""Live counters of the table that is installed in this process, for a server's own metrics.

`PrometheusCollector` is for the registry of prometheus_client, which importing this does not load.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from warmup.core.errors import SettingsError
from warmup.serving.audit import METRICS, by_label

__all__ = ["PrometheusCollector"]

# Not counted in a process: runs, and calls outside of artifacts.
_LIVE: Final = (
    *(each for each in METRICS if each[2] not in ("runs", "silent", "mismatch", "outside")),
    ("compiles_total", "Graphs compiled, or loaded from caches.", "compiles", None),
    ("compile_seconds_total", "Seconds in them, all threads together.", "compile_seconds", None),
)


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
                for key, count in by_label(value, label).items():
                    family.add_metric([digest, *([key] if label else [])], float(count))
            yield family

    describe = collect
