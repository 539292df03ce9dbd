"""A benchmark of layers as files: one JSON document, and one chart for each layer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.charts.draw import draw
from warmup.bench.layers.layers import LAYERS
from warmup.bench.layers.report import LayerCell, LayersReport, Pass

LAYERS_STEM: Final = "bench-layers"
_STEPS: Final = {Pass.FORWARD: "forward", Pass.BOTH: "fwd+bwd"}


def document(report: LayersReport) -> dict[str, Any]:
    """Return everything that *report* knows as JSON values; times in microseconds."""
    return {
        "benchmark": "layers",
        "provenance": dict(report.provenance),
        "dtype": report.dtype,
        "launch": report.launch.value,
        "l2": report.l2.value,
        "rounds": report.rounds,
        "backends": list(report.backends),
        "missing": dict(report.missing),
        "versions": dict(report.versions),
        "custom_options": dict(report.options),
        "peaks": None if report.peaks is None else asdict(report.peaks),
        "cells": [_cell(report, cell) for cell in report.cells],
        "speedup_over_eager": _speedups(report),
    }


def draw_charts(report: LayersReport, folder: Path) -> tuple[Path, ...]:
    """Draw ``bench-layers-LAYER`` for each layer into *folder*, as PNG and as SVG each.

    Raises:
        SettingsError: matplotlib is not installed, or the files cannot be written.
    """
    return tuple(
        path
        for layer in report.layers
        for path in draw(chart_of(report, layer), folder / f"{LAYERS_STEM}-{layer}")
    )


def chart_of(report: LayersReport, layer: str) -> Chart:
    """Return the chart of the bandwidth that *layer* reaches, by shape, pass and backend."""
    cells = {(str(c.shape), c.step, c.backend): c for c in report.of_layer(layer)}
    places = tuple(dict.fromkeys((shape, step) for shape, step, _ in cells))
    series: list[Series] = []
    for backend in report.backends:
        row = [cells.get((shape, step, backend)) for shape, step in places]
        if any(cell is not None and cell.samples is not None for cell in row):
            series.append(_series(report, backend, row))
    where, of = report.provenance, LAYERS[layer]
    dropped = [name for name in report.backends if name not in {s.name.split()[0] for s in series}]
    return Chart(
        title=f"{of.title}: memory bandwidth by shape and backend, {report.dtype}",
        subtitle=f"Higher is better. Least bytes the layer must move over its "
        f"{report.device_type.upper()} time: medians of {report.rounds} rounds with 95 % "
        f"intervals, {report.launch}, {report.l2} L2.",
        x_label=f"rows x {of.columns}, and the pass that is timed",
        y_label="least bytes moved per second (GB/s)",
        groups=tuple(f"{shape} {_STEPS[step]}" for shape, step in places),
        series=tuple(series),
        reference=None if report.peaks is None else ("measured peak", report.peaks.gbps),
        note=f"{where['device']}, torch {where['torch']}, Triton {where['triton']}, "
        f"warmup {where['warmup']}, {where['date']}"
        + (f"; without {', '.join(dropped)}" if dropped else ""),
    )


def _series(report: LayersReport, backend: str, row: list[LayerCell | None]) -> Series:
    bounds = [None if cell is None else cell.gbps_interval for cell in row]
    version = report.versions.get(backend)
    return Series(
        name=f"{backend} {version}" if version else backend,
        values=tuple(None if cell is None else cell.gbps for cell in row),
        low=tuple(None if ends is None else ends[0] for ends in bounds),
        high=tuple(None if ends is None else ends[1] for ends in bounds),
    )


def _cell(report: LayersReport, cell: LayerCell) -> dict[str, Any]:
    samples = cell.samples
    return {
        "layer": cell.layer,
        "rows": cell.shape.rows,
        "columns": cell.shape.columns,
        "pass": cell.step.value,
        "backend": cell.backend,
        "time_us": None if samples is None else samples.median,
        "interval_us": None if samples is None else list(samples.interval),
        "rounds_us": None if samples is None else list(samples.times_us),
        "least_bytes": cell.moved,
        "gbps": cell.gbps,
        "share_of_peak": report.share(cell),
        "speedup_over_eager": report.speedup(cell),
        "relative_l2_error": cell.error,
        "reason": cell.reason or None,
    }


def _speedups(report: LayersReport) -> list[dict[str, Any]]:
    """Return the geometric means, by layer and, with None for the layer, over all."""
    return [
        {
            "layer": layer,
            "pass": step.value,
            "backend": backend,
            "geomean": found[0],
            "shapes": found[1],
        }
        for layer in (*report.layers, None)
        for step in report.steps
        for backend in report.backends
        if (found := report.mean_speedup(backend, step, layer)) is not None
    ]
