"""How a chart is laid out and painted, with matplotlib. Imported by `charts.draw` alone.

Lengths are pixels of the PNG. The page is laid out from the outside in: texts at the top and at the
bottom, the legend, the axes between them, then the labels that find room in the axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.charts.lettering import (
    CROSS,
    DPI,
    FAILED,
    FAINT,
    GAP,
    GROUP_WIDTH,
    HEIGHT,
    INK,
    LEFT,
    LIFT,
    MARGIN,
    RIGHT,
    SMALL,
    TEXT,
    TICK,
    TITLE,
    WIDTH,
    Mark,
    Page,
    form_of,
    height_of,
    label_bars,
    label_of,
    label_points,
    name_groups,
    refer,
)

# Okabe and Ito's colours, told apart with every common form of colour blindness.
_COLOURS: Final = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#D55E00", "#F0E442", "#000000"),
)
_MARKERS: Final = "osD^vP*X"
_HATCHES: Final = ("", "//", "xx", "..")  # for the second and later turns through the colours
_DASHES: Final = ("-", "--", "-.", ":")
_GRID: Final = "#DDDDDD"
_REFERENCE: Final = 3  # gaps above a line whose name has three lines, centred on it
_BAR_WIDTH: Final = 0.92  # of the distance between two bars
_DECADES: Final = 1e3  # a log scale over less than these has ticks at 2 and 5 too
_SETTINGS: Final[Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # the first comes with matplotlib
    "svg.fonttype": "none",
    "svg.hashsalt": "warmup",
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "hatch.linewidth": 0.6,
}


def paint(chart: Chart, png: Path, svg: Path) -> None:
    """Write *chart* to both files; the same chart gives the same SVG again.

    Raises:
        OSError: a file cannot be written.
        ValueError: a series has not one value for each group.
    """
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)  # makes itself the canvas of the figure
        compose(chart, Page(figure))
        figure.savefig(png, metadata={"Software": None, "Title": chart.title})
        figure.savefig(svg, metadata={"Date": None, "Title": chart.title})


def compose(chart: Chart, page: Page) -> None:
    """Lay out *chart* on *page* and paint it there."""
    right = RIGHT if chart.reference else MARGIN
    width = WIDTH - LEFT - right
    axes = page.figure.add_axes((0, 0, 1, 1))
    marks = list((_bars if chart.kind == "bars" else _lines)(chart, axes))
    top = page.write(chart.title, MARGIN, TITLE, weight="bold")
    top = page.write(chart.subtitle, top, TEXT, color=FAINT)
    top = page.legend(axes, top + GAP) + (_REFERENCE if chart.reference else 1) * GAP
    bottom = page.write_up(chart.note, MARGIN / 2, SMALL, color=FAINT)
    bottom += height_of(TEXT) + GAP + name_groups(chart, axes, page, width)
    height = HEIGHT - top - bottom
    axes.set_position((LEFT / WIDTH, bottom / HEIGHT, width / WIDTH, height / HEIGHT))
    axes.set_xlim(-0.5, max(len(chart.groups), 1) - 0.5)
    axes.set_xlabel(chart.x_label, fontsize=TEXT, labelpad=GAP / 2)
    axes.set_ylabel(chart.y_label, fontsize=TEXT, labelpad=GAP / 2)
    axes.tick_params(which="both", length=0, labelcolor=INK)
    axes.tick_params(axis="y", labelsize=TICK)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if chart.kind == "bars":
        form = form_of(marks, page, width * GROUP_WIDTH / max(len(marks), 1))
        _scale(chart, axes, form.room, height)
        if label_bars(axes, marks, form):
            axes.set_xlabel(f"{chart.x_label} ({CROSS} {FAILED})")
    else:
        _scale(chart, axes, height_of(SMALL), height)
        lines = [_numbers(series, chart) for series in chart.series]
        label_points(axes, marks, lines, page, chart.reference)
    if chart.reference:
        refer(axes, page, *chart.reference)


def _bars(chart: Chart, axes: Axes) -> Iterator[Mark]:
    """Draw the bars; yield a mark for each, and one without text where a value is missing."""
    step = GROUP_WIDTH / max(len(chart.series), 1)
    for number, series in enumerate(chart.series):
        places = [group + step * (number + 0.5) - GROUP_WIDTH / 2 for group in _places(chart)]
        turn, colour = divmod(number, len(_COLOURS))
        axes.bar(
            places,
            _numbers(series, chart),
            width=step * _BAR_WIDTH,
            label=series.name,
            color=_COLOURS[colour],
            hatch=_HATCHES[turn % len(_HATCHES)],
            edgecolor=INK,
            linewidth=0.6,
        )
        _bounds(axes, series, places)
        yield from _marks(series, places)


def _lines(chart: Chart, axes: Axes) -> Iterator[Mark]:
    """Draw the lines, with a gap where a value is missing; yield a mark for each value."""
    for number, series in enumerate(chart.series):
        turn, colour = divmod(number, len(_COLOURS))
        axes.plot(
            list(_places(chart)),
            _numbers(series, chart),
            label=f"{series.name} (gap: {chart.gap})" if None in series.values else series.name,
            color=_COLOURS[colour],
            linestyle=_DASHES[turn % len(_DASHES)],
            linewidth=2.2,
            zorder=5,
            marker=_MARKERS[colour],
            markersize=8,
            markeredgecolor=INK,
            markeredgewidth=0.6,
        )
        _bounds(axes, series, list(_places(chart)))
        yield from _marks(series, list(_places(chart)))


def _places(chart: Chart) -> range:
    return range(len(chart.groups))


def _numbers(series: Series, chart: Chart) -> list[float]:
    pairs = zip(series.values, chart.groups, strict=True)
    return [math.nan if value is None else value for value, _ in pairs]


def _bounds(axes: Axes, series: Series, places: Sequence[float]) -> None:
    low, high = series.low or series.values, series.high or series.values
    rows = [
        (place, value, max(value - below, 0.0), max(above - value, 0.0))
        for place, value, below, above in zip(places, series.values, low, high, strict=True)
        if value is not None and below is not None and above is not None and below < above
    ]
    if rows:
        x, y, down, up = zip(*rows, strict=True)
        axes.errorbar(
            x, y, yerr=(down, up), fmt="none", ecolor=INK, elinewidth=1.2, capsize=3, zorder=4
        )


def _marks(series: Series, places: Sequence[float]) -> Iterator[Mark]:
    low, high = series.low or series.values, series.high or series.values
    for place, value, below, above in zip(places, series.values, low, high, strict=True):
        if value is None:
            yield Mark(place, 0.0, 0.0, 0.0, "")
        else:
            least, most = (value if end is None else end for end in (below, above))
            yield Mark(place, value, least, most, label_of(value))


def _scale(chart: Chart, axes: Axes, room: float, height: float) -> None:
    """Set the y axis, from zero or on a log scale from below the least, with *room* at the top."""
    ends = [
        end
        for series in chart.series
        for end in (*series.values, *series.low, *series.high)
        if end is not None and (end > 0 or not chart.log)
    ]
    ends += [chart.reference[1]] if chart.reference else []
    least, most = min(ends, default=1.0), max(ends, default=1.0)
    share = 1 - (room + 2 * LIFT) / height
    if chart.log:
        bottom = least / (2 if chart.kind == "bars" else 1.25)
        axes.set_yscale("log")
        axes.set_ylim(bottom, bottom * (max(most, least) / bottom) ** (1 / share))
        subs = (1, 2, 5) if most < least * _DECADES else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        bottom = min(least, 0.0)
        if bottom < 0:
            bottom -= (most - bottom) * 2 * LIFT / height
        axes.set_ylim(bottom, bottom + ((most - bottom) or 1.0) / share)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:.12g}"))
