"""`warmup.metrics.observe` with OpenTelemetry's own reader, on counts that a table might have."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from warmup.metrics import observe
from warmup.serving import handle
from warmup.serving.report import Report

pytestmark = pytest.mark.skipif(
    find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None,
    reason="the extra servers is not installed",
)

REPORT = Report(
    digest="d" * 64,
    hits={"mm a": 2, "mm b": 1},
    misses={"mm c": 4},
    miss_reasons={"no_row": 3, "stale": 1},
    uncovered={},
    tuned=0,
    from_cache=0,
    cached_decisions=0,
    cached_misses=0,
    foreign={},
    unused=(),
    compiles=2,
    compile_seconds=1.5,
)


def test_each_count_is_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts by reason have it as an attribute, seconds have their unit."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    monkeypatch.setattr(handle, "_installed", [SimpleNamespace(report=lambda: REPORT)])
    reader = InMemoryMetricReader()
    observe(MeterProvider(metric_readers=[reader]).get_meter("tests"))
    read = reader.get_metrics_data()
    assert read is not None
    found = {
        (metric.name, metric.unit, point.attributes.get("reason")): point.value
        for metric in read.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
    }
    assert found["warmup.hits", "1", None] == 3
    assert found["warmup.misses", "1", "no_row"] == 3
    assert found["warmup.misses", "1", "stale"] == 1
    assert found["warmup.compile_seconds", "s", None] == 1.5
    assert found["warmup.installed", "1", None] == 1
