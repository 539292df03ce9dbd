"""`draw_points`: rates of calls under the roofline of a device, on logarithmic scales."""

from __future__ import annotations

from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from warmup.bench.charts.chart import Chart
from warmup.bench.charts.labels import label_of

_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_INK: Final = "#222222"
_MARGIN: Final = 1.6  # of the FLOPs per byte, left and right of all points
_FINE: Final = (1, 1.5, 2, 3, 5, 7)  # ticks of a decade: layers are close together
_DROP: Final = 0.7  # of the lowest point


def draw_points(chart: Chart, axes: Axes) -> None:
    """Draw each value of *chart* at the FLOPs per byte of its group, and the roof above."""
    roof = chart.roof
    assert roof is not None
    marks = dict(zip(dict.fromkeys(roof.marks), _MARKERS * len(roof.marks), strict=False))
    points = list(zip(roof.positions, roof.marks, strict=True))
    style: Any = {"linestyle": "none", "markeredgecolor": _INK, "markeredgewidth": 0.6}
    for number, series in enumerate(chart.series):
        colour = f"C{number}"
        axes.plot([], [], "s", color=colour, label=series.name, **style)
        for (at, mark), value in zip(points, series.values, strict=True):
            if value is not None:
                axes.plot([at], [value], marks[mark], color=colour, alpha=0.8, **style)
    for mark, marker in marks.items():
        axes.plot([], [], marker, color="none", label=mark, **style)
    left, right = min(roof.positions) / _MARGIN, max(roof.positions) * _MARGIN
    if roof.gbps is not None:
        _draw_roof(axes, roof.gbps, roof.tflops, (left, right))
    axes.set(xscale="log", yscale="log", xlabel=chart.x_label, ylabel=chart.y_label)
    axes.set_xlim(left, right)
    values = [value for series in chart.series for value in series.values if value is not None]
    axes.set_ylim(bottom=min(values) * _DROP)
    axes.grid(which="both")
    for axis, subs in ((axes.xaxis, _FINE), (axes.yaxis, (1, 2, 5))):
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")


def _draw_roof(axes: Axes, gbps: float, tflops: float | None, ends: tuple[float, float]) -> None:
    """Draw the roof between *ends*; a compute peak beyond them is in the legend only."""
    name = f"roof: measured {label_of(gbps)} GB/s"
    places = list(ends)
    if tflops is not None:
        ridge = tflops * 1e3 / gbps
        name += f"; {label_of(tflops)} TFLOP/s of matmuls from {label_of(ridge)} FLOPs per byte"
        places = sorted({*ends, min(max(ridge, ends[0]), ends[1])})
    heights = [min(place * gbps * 1e-3, tflops or float("inf")) for place in places]
    axes.plot(places, heights, "--", color=_INK, linewidth=1.6, label=name, marker="")
