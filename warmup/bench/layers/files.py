"""Files of the layers benchmark: one JSON document, and one chart for each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.charts.draw import draw_all
from warmup.bench.files import place_of
from warmup.bench.layers.layers import LAYERS, Rows
from warmup.bench.layers.report import LayerCell, LayersReport, Pass
from warmup.core.roofline import gbps_of

LAYERS_STEM: Final = "bench-layers"
_STEPS: Final = {Pass.FORWARD: "forward", Pass.BOTH: "fwd+bwd"}


def document(report: LayersReport) -> dict[str, Any]:
    """Return all of *report* as JSON values, its rates and speed-ups too; times in microseconds."""
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
    return draw_all(charts_of(document(report)), folder, LAYERS_STEM)


def charts_of(record: Mapping[str, Any]) -> dict[str, Chart]:
    """Return the charts of the document *record*: the bandwidth of each layer, by its name."""
    layers = dict.fromkeys(cell["layer"] for cell in record["cells"])
    return {layer: _chart(record, layer) for layer in layers}


def _chart(record: Mapping[str, Any], layer: str) -> Chart:
    """Return the bandwidth that *layer* reaches, by shape, pass and backend."""
    groups: dict[str, dict[str, Any]] = {}
    for cell in record["cells"]:
        if cell["layer"] == layer:
            group = f"{Rows(cell['rows'], cell['columns'])} {_STEPS[cell['pass']]}"
            timed = groups.setdefault(group, {})
            if cell["time_us"] is not None:
                timed[cell["backend"]] = cell
    drawn = [name for name in record["backends"] if any(name in timed for timed in groups.values())]
    dropped = ", ".join(name for name in record["backends"] if name not in drawn)
    of, peaks = LAYERS[layer], record["peaks"]
    return Chart(
        title=f"{of.title}: memory bandwidth by shape and backend, {record['dtype']}",
        subtitle="Higher is better. Least bytes the layer must move over its device time: medians "
        f"of {record['rounds']} rounds with 95 % intervals, {record['launch']}, {record['l2']} L2.",
        x_label=f"rows x {of.columns}, and the pass that is timed",
        y_label="least bytes moved per second, GB/s",
        groups=tuple(groups),
        series=tuple(
            _series(
                f"{name} {record['versions'].get(name, '')}".rstrip(),
                [timed.get(name) for timed in groups.values()],
            )
            for name in drawn
        ),
        reference=peaks and ("measured peak", peaks["gbps"]),
        note=place_of(record["provenance"]) + (f"; without {dropped}" if dropped else ""),
    )


def _series(name: str, cells: Sequence[Any]) -> Series:
    """Return the rates of a backend, with the bounds that the interval of its time gives."""
    slow, fast = (
        tuple(cell and gbps_of(cell["least_bytes"], cell["interval_us"][end]) for cell in cells)
        for end in (1, 0)
    )
    values = tuple(cell and cell["gbps"] for cell in cells)
    return Series(name=name, values=values, low=slow, high=fast)


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
    """Return the mean speed-ups: of each layer, and over all layers, where the layer is None."""
    return [
        {
            "layer": layer,
            "pass": step.value,
            "backend": backend,
            "geomean": mean[0],
            "shapes": mean[1],
        }
        for layer in (*report.layers, None)
        for step in report.steps
        for backend in report.backends
        if (mean := report.mean_speedup(backend, step, layer)) is not None
    ]
