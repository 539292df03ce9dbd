"""`observe`: the live counters of this process as observable instruments of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from warmup.core.errors import SettingsError
from warmup.core.version import __version__
from warmup.serving.counters.counts import read_counts


def observe(meter: Any = None) -> None:
    """Create an observable counter or gauge for each metric on *meter*.

    Without *meter* it is that of the global meter provider, called ``warmup``. Names are those of
    `PrometheusCollector` with dots: ``warmup.hits``, ``warmup.misses`` with the attribute
    ``reason``. Call it once in a process.

    Raises:
        SettingsError: the API of OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise SettingsError(
            "opentelemetry is not installed", 'pip install "inductor-warmup[otel]"'
        ) from error
    meter = metrics.get_meter("warmup", __version__) if meter is None else meter
    for metric in read_counts():
        is_counter = metric.name.endswith("_total")
        create = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        create(
            f"warmup.{metric.name.removesuffix('_total')}",
            callbacks=[partial(_observations, metrics.Observation, metric.name)],
            unit="s" if "seconds" in metric.name else "1",
            description=metric.help_text,
        )


def _observations(make: Callable[..., Any], name: str, _: object) -> Iterable[Any]:
    """Yield the samples of the metric *name*, as OpenTelemetry calls them."""
    for metric in read_counts():
        if metric.name == name:
            for labels, value in metric.samples:
                yield make(value, dict(zip(metric.labels, labels, strict=True)))
