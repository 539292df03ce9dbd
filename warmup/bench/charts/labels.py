"""Labels with the values of a chart, placed at bars and points where they cover nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from warmup.bench.charts.chart import Chart

# Points and degrees of the values of bars; the first form in which all fit is taken.
_FORMS: Final = ((10.5, 0.0), (8.0, 0.0), (10.5, 90.0), (8.0, 90.0))
_BESIDE: Final = 0.68  # the room left of an error bar, in widths of its bar
_LABEL_STYLE: Final[Any] = {  # over lines, not under them
    "zorder": 6,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.4},
}
_CLEAR, _MARKER = 4, 11  # pixels: from a value to any line, and the width of a marker
_CLEARLY: Final = 0.8  # the distance of a value to its point, over that to any other point
_AROUND: Final[
    Any
] = (  # a point: above, below, then where a slope leaves room; distances in points
    *(((0, 7), "center", "bottom"), ((0, -7), "center", "top"), ((-5, 5), "right", "bottom")),
    *(((5, -5), "left", "top"), ((5, 5), "left", "bottom"), ((-5, -5), "right", "top")),
)


def label_of(value: float) -> str:
    """Return *value* with three significant digits, or all digits before the point if more."""
    for limit, digits in ((99.95, 0), (9.995, 1), (0.9995, 2)):
        if abs(value) >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.3g}"


def label_bars(axes: Axes, *, stacked: bool) -> None:
    """Write each value at the end of its bar, where all fit in one form, and make room for them.

    A value stands left of an error bar. Where bars are stacked the last ones are the sums, and the
    others have their values in the middle, where they are high enough.
    """
    bars = [drawn for drawn in axes.containers if isinstance(drawn, BarContainer)]
    parts, ends = (bars[:-1], bars[-1:]) if stacked else ([], bars)
    is_beside = any(isinstance(drawn, ErrorbarContainer) for drawn in axes.containers)
    patches = [patch for series in ends for patch in series.patches]
    begin, end = axes.transData.transform([(0, 1), (patches[0].get_width() if patches else 0, 1)])
    labels = _fit(axes, ends, (end[0] - begin[0]) * (_BESIDE if is_beside else 1))
    highest = max((label.get_window_extent().height for label in labels), default=0)
    axes.margins(y=1.4 * highest / axes.bbox.height + 0.02)
    axes.autoscale_view()
    if axes.get_yscale() == "log":
        axes.set_ylim(bottom=axes.dataLim.minposy / 2)
    for patch, label in zip(patches, labels, strict=False) if is_beside else ():
        label.xy = (patch.get_x() + patch.get_width() * _BESIDE / 2, label.xy[1])
    for series in parts if labels else ():
        for patch, label in zip(series, _write(axes, series, "center", *_FORMS[0]), strict=True):
            label.set_visible(patch.get_window_extent().height > 1.5 * highest)


def label_points(axes: Axes, chart: Chart) -> None:
    """Write the values of *chart* at their points, each where it covers no line and no other value.

    A value is left out where all of its places are covered, or would seem another point's.
    """
    axes.margins(y=0.1)
    axes.autoscale_view()
    paths = [line.get_transform().transform_path(line.get_path()) for line in axes.lines]
    values = [point for series in chart.series for point in enumerate(series.values)]
    points = [(x, y) for x, y in values if y is not None]
    pixels = [axes.transData.transform(point) for point in points]
    taken: list[Bbox] = []
    for point, pixel in zip(points, pixels, strict=True):
        for offset, across, along in _AROUND:
            style = {"ha": across, "va": along, "fontsize": _FORMS[0][0]}
            text = label_of(point[1])
            label = axes.annotate(text, point, offset, textcoords="offset points", **style)
            box = label.get_window_extent().padded(_CLEAR)
            if (
                axes.bbox.y0 < box.y0 < box.y1 < axes.bbox.y1
                and _belongs(box, pixel, pixels)
                and not any(path.intersects_bbox(box, filled=False) for path in paths)
                and not any(box.overlaps(other) for other in taken)
            ):
                taken.append(box)
                break
            label.remove()


def _belongs(box: Bbox, point: Any, points: Sequence[Any]) -> bool:
    """Return whether *box* is nearest to *point*, clearly so where no marker overlaps its own."""
    middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
    shares = [1.0 if math.dist(point, other) < _MARKER else _CLEARLY for other in points]
    pairs = zip(points, shares, strict=True)
    return all(math.dist(middle, point) <= math.dist(middle, o) * share for o, share in pairs)


def _fit(axes: Axes, bars: Sequence[BarContainer], room: float) -> list[Annotation]:
    """Return values at the ends of *bars*, none wider than *room*; empty where they cannot be."""
    for size, turn in _FORMS:
        labels = [label for series in bars for label in _write(axes, series, "edge", size, turn)]
        if max((label.get_window_extent().width for label in labels), default=0) <= room:
            return labels
        for label in labels:
            label.remove()
    return []


def _write(
    axes: Axes, bars: BarContainer, place: Literal["edge", "center"], size: float, turn: float
) -> list[Annotation]:
    texts = [label_of(patch.get_height()) for patch in bars.patches]
    return axes.bar_label(
        bars, texts, label_type=place, padding=3, fontsize=size, rotation=turn, **_LABEL_STYLE
    )
