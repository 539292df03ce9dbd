"""The values of a chart as texts at their bars and points, where they cover nothing."""

from __future__ import annotations

from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from warmup.bench.charts.chart import Chart

# Points and degrees of the values of bars; the first form in which all fit is taken.
_FORMS: Final = ((10.5, 0.0), (8.0, 0.0), (10.5, 90.0), (8.0, 90.0))
_BESIDE: Final = 0.68  # the room left of an error bar, in widths of its bar
_STYLE: Final[Any] = {  # over lines, not under them
    "zorder": 6,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.4},
}
_CLEAR: Final = 4  # pixels around a value at a point: half a marker
_AROUND: Final = (  # a point: above, below, then where a slope leaves room; distances in points
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
    room = (end[0] - begin[0]) * (_BESIDE if is_beside else 1)
    for size, turn in _FORMS:
        labels = [label for series in ends for label in _write(axes, series, "edge", size, turn)]
        if max((label.get_window_extent().width for label in labels), default=0) <= room:
            break
        for label in labels:
            label.remove()
    else:
        return
    highest = max((label.get_window_extent().height for label in labels), default=0)
    axes.margins(y=1.4 * highest / axes.bbox.height + 0.02)
    axes.autoscale_view()
    if axes.get_yscale() == "log":
        axes.set_ylim(bottom=axes.dataLim.minposy / 2)
    for patch, label in zip(patches, labels, strict=True) if is_beside else ():
        label.xy = (patch.get_x() + patch.get_width() * _BESIDE / 2, label.xy[1])
    for series in parts:
        for patch, label in zip(series, _write(axes, series, "center", *_FORMS[0]), strict=True):
            label.set_visible(patch.get_window_extent().height > 1.5 * highest)


def label_points(axes: Axes, chart: Chart) -> None:
    """Write the values of *chart* at their points, where they cover no line and no other value."""
    axes.margins(y=0.1)
    axes.autoscale_view()
    paths = [line.get_transform().transform_path(line.get_path()) for line in axes.lines]
    taken: list[Bbox] = []
    for x, y in (point for series in chart.series for point in enumerate(series.values)):
        for offset, across, along in _AROUND:
            if y is None:
                break
            label = axes.annotate(
                label_of(y), (x, y), offset, textcoords="offset points", ha=across, va=along
            )
            label.set_fontsize(_FORMS[0][0])
            box = label.get_window_extent().padded(_CLEAR)
            is_inside = axes.bbox.y0 < box.y0 and box.y1 < axes.bbox.y1
            crossed = any(path.intersects_bbox(box, filled=False) for path in paths)
            if is_inside and not crossed and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            label.remove()


def _write(
    axes: Axes, bars: BarContainer, place: Literal["edge", "center"], size: float, turn: float
) -> list[Annotation]:
    texts = [label_of(patch.get_height()) for patch in bars.patches]
    return axes.bar_label(
        bars, texts, label_type=place, padding=3, fontsize=size, rotation=turn, **_STYLE
    )
