"""A benchmark of products as files: one JSON document and two charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.charts.draw import draw
from warmup.bench.matmul.report import COLUMNS, MmReport, ShapeResult, Timed

MATMUL_STEM: Final = "bench-mm"


def document(report: MmReport) -> dict[str, Any]:
    """Return everything that *report* knows as JSON values; times in microseconds."""
    verdicts = Counter(one.verdict.value for one in report.comparisons.values())
    return {
        "benchmark": "mm",
        "provenance": dict(report.provenance),
        "dtype": report.dtype,
        "launch": report.launch.value,
        "l2": report.l2.value,
        "rounds": report.rounds,
        "near_tie": report.near_tie,
        "peaks": None if report.peaks is None else _plain(asdict(report.peaks)),
        "table": report.table,
        "shapes": [_shape(report, one) for one in report.shapes],
        "summary": {"verdicts": dict(verdicts), "table_over_torch": report.speedup},
    }


def draw_charts(report: MmReport, folder: Path) -> tuple[Path, ...]:
    """Draw ``bench-mm-time`` and ``bench-mm-tflops`` into *folder*, as PNG and as SVG each.

    Raises:
        SettingsError: matplotlib is not installed, or the files cannot be written.
    """
    times, rates = charts_of(report)
    return *draw(times, folder / f"{MATMUL_STEM}-time"), *draw(
        rates, folder / f"{MATMUL_STEM}-tflops"
    )


def charts_of(report: MmReport) -> tuple[Chart, Chart]:
    """Return the charts of device time and of TFLOP/s, by shape and column."""
    device = report.processor
    where, name = report.provenance, f"{report.dtype} products"
    shared: dict[str, Any] = {
        "x_label": "M x K x N",
        "groups": tuple(str(one.shape) for one in report.shapes),
        "note": f"{where['device']}, torch {where['torch']}, Triton {where['triton']}, "
        f"warmup {where['warmup']}, {where['date']}",
    }
    how = f"{report.launch}, {report.l2} L2, medians of {report.rounds} rounds with 95 % intervals"
    times = Chart(
        title=f"{device} time of {name}",
        subtitle=f"lower is better; {how}",
        y_label=f"{device} time per call, µs",
        series=_series(report, lambda _one, _timed, time_us: time_us),
        **shared,
    )

    def rate(one: ShapeResult, _timed: Timed, time_us: float) -> float:
        return one.shape.flops / time_us / 1e6

    peak = None if report.peaks is None else report.peaks.tflops.get(report.dtype)
    rates = Chart(
        title=f"TFLOP/s of {name}",
        subtitle=f"higher is better; {how}",
        y_label="TFLOP/s",
        series=_series(report, rate),
        reference=None if peak is None else ("measured peak", peak),
        **shared,
    )
    return times, rates


def _series(
    report: MmReport, value: Callable[[ShapeResult, Timed, float], float]
) -> tuple[Series, ...]:
    """Return each column that was timed anywhere, with *value* of its times and their bounds."""

    def along(name: str, pick: Callable[[Timed], float]) -> tuple[float | None, ...]:
        return tuple(
            value(one, one.timed[name], pick(one.timed[name])) if name in one.timed else None
            for one in report.shapes
        )

    found: list[Series] = []
    for name in COLUMNS:
        if any(name in one.timed for one in report.shapes):
            ends = along(name, lambda t: t.device.interval[0]), along(name, _upper)
            low, high = (tuple(map(pick, *ends)) for pick in (_least, _most))
            values = along(name, lambda timed: timed.device_us)
            found.append(Series(name=name, values=values, low=low, high=high))
    return tuple(found)


def _upper(timed: Timed) -> float:
    return timed.device.interval[1]


def _least(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else min(a, b)


def _most(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else max(a, b)


def _shape(report: MmReport, one: ShapeResult) -> dict[str, Any]:
    found = report.comparisons.get(one.shape)
    return {
        "shape": asdict(one.shape),
        "fastest": one.fastest,
        "columns": {name: _column(report, one, timed) for name, timed in one.timed.items()},
        "dropped": dict(one.dropped),
        "table_hits": one.hits,
        "table_over_best": None if found is None else _plain(asdict(found)),
    }


def _column(report: MmReport, one: ShapeResult, timed: Timed) -> dict[str, Any]:
    return {
        "device_us": timed.device_us,
        "device_interval_us": list(timed.device.interval),
        "device_rounds_us": list(timed.device.times_us),
        "total_us": timed.total_us,
        "total_interval_us": list(timed.total.interval),
        "total_rounds_us": list(timed.total.times_us),
        "relative_l2_error": timed.error,
        "kernel": timed.kernel,
        **asdict(report.rates(one.shape, timed)),
    }


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in found.items()
    }
