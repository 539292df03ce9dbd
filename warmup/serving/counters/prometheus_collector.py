"""`PrometheusCollector`: the live counters of this process in a registry of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warmup.core.errors import SettingsError
from warmup.serving.counters.counts import read_counts


class PrometheusCollector:
    """A collector for ``registry.register``: each scrape has the counts of that moment.

    Names and labels are those of ``warmup audit --format prometheus``. It registers before or after
    a table is installed. In prometheus_client's multiprocess mode no custom collector is asked;
    there each worker needs a registry and a port of its own.

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

    def describe(self) -> Iterator[Any]:
        """Yield the metrics without samples, by which a registry knows their names."""
        for family, _ in self._families():
            yield family

    def collect(self) -> Iterator[Any]:
        """Yield the metrics with their samples."""
        for family, samples in self._families():
            for labels, value in samples:
                family.add_metric(labels, value)
            yield family

    def _families(self) -> Iterator[tuple[Any, tuple[tuple[tuple[str, ...], float], ...]]]:
        for metric in read_counts():
            name = f"warmup_{metric.name}"
            is_counter = name.endswith("_total")
            make = self._core.CounterMetricFamily if is_counter else self._core.GaugeMetricFamily
            yield make(name, metric.help_text, labels=metric.labels), metric.samples
