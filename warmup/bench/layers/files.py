"""Files of the layers benchmark: one JSON document, and one chart for each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from warmup.bench.charts.chart import Chart, Roof, Series
from warmup.bench.charts.draw import draw_all
from warmup.bench.files import place_of
from warmup.bench.layers.report import LayerCell, LayersReport, Pass
from warmup.core.roofline import gbps_of
from warmup.core.runtime import slug_of

LAYERS_STEM: Final = "bench-layers"
_STEPS: Final = {Pass.FORWARD: "forward", Pass.BOTH: "fwd+bwd"}

_ABOVE: Final = {
    "cold": "No forward call can be above the roof; backward may find operands in the cache.",
    "warm": "Bytes may come from a cache, so calls may be above the roof.",
}


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
        "options": {name: dict(options) for name, options in report.options.items()},
        "tolerance": report.tolerance,
        "titles": {name: list(titles) for name, titles in report.titles.items()},
        "table": report.table,
        "table_hits": dict(report.hits),
        "peaks": None if report.peaks is None else asdict(report.peaks),
        "cells": [_cell(report, cell) for cell in report.cells],
        "speedup_over_eager": _speedups(report),
    }


def draw_charts(report: LayersReport, folder: Path) -> tuple[Path, ...]:
    """Draw ``bench-layers-LAYER`` for each layer and the roofline, as PNG and as SVG each.

    Raises:
        SettingsError: matplotlib is not installed, or the files cannot be written.
    """
    return draw_all(charts_of(document(report)), folder, LAYERS_STEM)


def charts_of(record: Mapping[str, Any]) -> dict[str, Chart]:
    """Return the charts of the document *record*: the bandwidth of each layer, by its name.

    Where layers say their FLOPs there is ``roofline-DEVICE`` too, such as ``roofline-nvidia-h200``:
    no class has such a name, and several devices may share a folder.
    """
    layers = dict.fromkeys(cell["layer"] for cell in record["cells"])
    charts = {layer: _chart(record, layer) for layer in layers}
    counted = [cell for cell in record["cells"] if cell["tflops"] is not None]
    if not counted:
        return charts
    device = slug_of(record["provenance"]["device"] or "")
    return {**charts, f"roofline-{device or 'device'}": _roofline(record, counted)}


def _roofline(record: Mapping[str, Any], cells: Sequence[Any]) -> Chart:
    """Return the rates of all *cells* by their FLOPs per byte, under the roofline of the device."""
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for cell in cells:
        group = (f"{cell['layer']} {_STEPS[cell['pass']]}", cell["shape"])
        groups.setdefault(group, {})[cell["backend"]] = cell
    first = [next(iter(timed.values())) for timed in groups.values()]
    peaks = record["peaks"]
    timed_backends = {cell["backend"] for cell in cells}
    return Chart(
        title=f"Layers under the roofline, {record['dtype']}",
        subtitle=f"Higher is better. {_ABOVE[record['l2']]} Medians of "
        f"{record['rounds']} rounds, {record['launch']}, {record['l2']} L2.",
        x_label="FLOPs per byte that has to be moved",
        y_label="arithmetic, TFLOP/s",
        groups=tuple(" ".join(group) for group in groups),
        series=tuple(
            Series(
                name=_name(record, name),
                values=tuple(
                    timed[name]["tflops"] if name in timed else None for timed in groups.values()
                ),
            )
            for name in record["backends"]
            if name in timed_backends
        ),
        kind="points",
        roof=Roof(
            positions=tuple(cell["flops_per_byte"] for cell in first),
            marks=tuple(mark for mark, _ in groups),
            gbps=peaks and peaks["gbps"],
            tflops=peaks and peaks["tflops"].get(record["dtype"]),
        ),
        note=place_of(record["provenance"]),
    )


def _name(record: Mapping[str, Any], backend: str) -> str:
    return f"{backend} {record['versions'].get(backend, '')}".rstrip()


def _chart(record: Mapping[str, Any], layer: str) -> Chart:
    """Return the bandwidth that *layer* reaches, by shape, pass and backend."""
    groups: dict[str, dict[str, Any]] = {}
    for cell in record["cells"]:
        if cell["layer"] == layer:
            group = f"{cell['shape']} {_STEPS[cell['pass']]}"
            timed = groups.setdefault(group, {})
            if cell["time_us"] is not None:
                timed[cell["backend"]] = cell
    drawn = [name for name in record["backends"] if any(name in timed for timed in groups.values())]
    dropped = ", ".join(name for name in record["backends"] if name not in drawn)
    (title, columns), peaks = record["titles"][layer], record["peaks"]
    return Chart(
        title=f"{title}: memory bandwidth by shape and backend, {record['dtype']}",
        subtitle="Higher is better. Least bytes the layer must move over its device time: medians "
        f"of {record['rounds']} rounds with 95 % intervals, {record['launch']}, {record['l2']} L2.",
        x_label=f"rows x {columns}, and the pass that is timed",
        y_label="least bytes moved per second, GB/s",
        groups=tuple(groups),
        series=tuple(
            _series(
                _name(record, name),
                [timed.get(name) for timed in groups.values()],
            )
            for name in drawn
        ),
        reference=peaks and ("measured peak", peaks["gbps"]),
        gap="no time: failed, or no such pass",
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
        "shape": str(cell.shape),
        "rows": cell.shape.rows,
        "columns": cell.shape.columns,
        "pass": cell.step.value,
        "backend": cell.backend,
        "time_us": None if samples is None else samples.median,
        "interval_us": None if samples is None else list(samples.interval),
        "rounds_us": None if samples is None else list(samples.times_us),
        "least_bytes": cell.moved,
        "flops": cell.flops,
        "flops_per_byte": cell.flops_per_byte,
        "tflops": cell.tflops,
        "gbps": cell.gbps,
        "share_of_peak": report.share(cell),
        "speedup_over_eager": report.speedup(cell),
        "relative_l2_error": cell.error,
        "is_wrong": cell.is_wrong,
        "reason": cell.reason or None,
    }


def _speedups(report: LayersReport) -> list[dict[str, Any]]:
    """Return the mean speed-ups: of each layer, and over all layers, where the layer is None."""
    return [
        {
            "layer": layer,
            "pass": step.value,
            "backend": backend,
            "geomean": mean.mean,
            "interval": list(mean.interval),
            "shapes": mean.shapes,
        }
        for layer in (*report.layers, None)
        for step in report.steps
        for backend in report.backends
        if (mean := report.mean_speedup(backend, step, layer)) is not None
    ]
