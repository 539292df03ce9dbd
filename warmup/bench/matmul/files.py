"""Files of the matmul benchmark: one JSON document and two charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.charts.draw import draw_all
from warmup.bench.files import place_of
from warmup.bench.matmul.against import Against
from warmup.bench.matmul.report import COLUMNS, HOST_PARTS, MmReport, ShapeResult
from warmup.bench.matmul.shapes import Shape, model_of

MATMUL_STEM: Final = "bench-mm"


def document(report: MmReport, against: Against | None = None) -> dict[str, Any]:
    """Return all of *report* as JSON values, its rates and verdicts too; times in microseconds.

    With *against* the changes from that benchmark too.
    """
    verdicts = Counter(ratio.verdict.value for ratio in report.comparisons.values())
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
        "shapes": [_shape(report, result) for result in report.shapes],
        "summary": {
            "verdicts": dict(verdicts),
            "table_over_torch": report.speedup,
            "over_torch": [
                {"model": model, "column": column, "geomean": mean}
                for model in (*report.models, None)
                for column in report.columns
                if (mean := report.mean_speedup(column, model)) is not None
            ],
            "host_us": {
                column: {part: report.host_us(column, part) for part in HOST_PARTS}
                for column in report.columns
            },
        },
        "against": None if against is None else _against(report, against),
    }


def _against(report: MmReport, against: Against) -> dict[str, Any]:
    return {
        "provenance": dict(against.provenance),
        "differences": list(against.differences(report)),
        "changes": [
            {
                "shape": asdict(shape),
                "column": column,
                "ratio": change.ratio,
                "interval": list(change.interval),
            }
            for column in report.columns
            for shape, change in against.changes(report, column).items()
        ],
    }


def draw_charts(report: MmReport, folder: Path) -> tuple[Path, ...]:
    """Draw ``bench-mm-time`` and ``bench-mm-tflops`` into *folder*, as PNG and as SVG each.

    Raises:
        SettingsError: matplotlib is not installed, or the files cannot be written.
    """
    return draw_all(charts_of(document(report)), folder, MATMUL_STEM)


def charts_of(record: Mapping[str, Any]) -> dict[str, Chart]:
    """Return the charts of the document *record*, ``time`` and ``tflops``, by shape and column."""
    dtype, peaks = record["dtype"], record["peaks"]
    peak = peaks and peaks["tflops"].get(dtype)
    how = (
        f"Medians of {record['rounds']} rounds with 95 % intervals, {record['launch']}, "
        f"{record['l2']} L2."
    )
    shared: dict[str, Any] = {
        "x_label": "M x K x N",
        "groups": tuple(
            f"{result['model'] or ''} {Shape(**result['shape'])}".lstrip()
            for result in record["shapes"]
        ),
        "note": place_of(record["provenance"]),
    }
    return {
        "time": Chart(
            title=f"Device time of {dtype} products",
            subtitle=f"Lower is better. {how}",
            y_label="device time of one call, us",
            series=_series(record, lambda _cell, time_us: time_us),
            **shared,
        ),
        "tflops": Chart(
            title=f"Arithmetic of {dtype} products",
            subtitle=f"Higher is better. {how}",
            y_label="arithmetic, TFLOP/s",
            series=_series(record, lambda cell, us: cell["tflops"] * cell["device_us"] / us),
            reference=peak and ("measured peak", peak),
            **shared,
        ),
    }


def _series(
    record: Mapping[str, Any], value: Callable[[Mapping[str, Any], float], float]
) -> tuple[Series, ...]:
    """Return a series for each column timed at any shape: *value* of its times and bounds."""
    series = []
    for name in COLUMNS:
        cells = [result["columns"].get(name) for result in record["shapes"]]
        bounds: list[Any] = [
            cell and [value(cell, us) for us in cell["device_interval_us"]] for cell in cells
        ]
        if any(cells):
            series.append(
                Series(
                    name=name,
                    values=tuple(cell and value(cell, cell["device_us"]) for cell in cells),
                    low=tuple(pair and min(pair) for pair in bounds),
                    high=tuple(pair and max(pair) for pair in bounds),
                )
            )
    return tuple(series)


def _shape(report: MmReport, result: ShapeResult) -> dict[str, Any]:
    ratio = report.comparisons.get(result.shape)
    return {
        "shape": asdict(result.shape),
        "model": model_of(result.shape),
        "fastest": result.fastest,
        "columns": {name: _column(report, result, name) for name in result.timed},
        "dropped": dict(result.dropped),
        "table_hits": result.hits,
        "table_unstable": result.is_unstable,
        "table_over_best": None if ratio is None else _plain(asdict(ratio)),
    }


def _column(report: MmReport, result: ShapeResult, name: str) -> dict[str, Any]:
    timed = result.timed[name]
    return {
        "device_us": timed.device_us,
        "device_interval_us": list(timed.device.interval),
        "device_rounds_us": list(timed.device.times_us),
        "total_us": timed.total_us,
        "total_interval_us": list(timed.total.interval),
        "total_rounds_us": list(timed.total.times_us),
        "relative_l2_error": timed.error,
        "kernel": timed.kernel,
        "host_us": {part: getattr(timed.host, part) for part in HOST_PARTS},
        "host_reason": timed.host.reason or None,
        **asdict(report.rates(result.shape, name, timed)),
    }


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()
    }
