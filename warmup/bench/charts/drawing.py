"""`paint`: a chart rendered by matplotlib, whose constrained layout makes room for every text.

Each bar has a column of its own: the value stands at the left of its bar and the error bar at the
right, so neither covers the other, nor anything of the next bar.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from warmup.bench.charts.chart import Chart
from warmup.bench.charts.labels import label_bars, label_of, label_points
from warmup.bench.charts.roofline import draw_points
from warmup.bench.charts.units import fit_unit

STYLE: Final = Path(__file__).with_name("charts.mplstyle")
_METADATA: Final[Any] = {"png": {"Software": None}, "svg": {"Date": None}}
_INK, _FAINT, _WARNING = "#222222", "#595959", "#B04400"
_HATCHES: Final = ("", "//", "xx", "..")  # of bars; the next hatch after every _COLOURS series
_COLOURS: Final = 8  # in the colour cycle of the style
_GROUP_WIDTH_SHARE: Final = 0.86  # the width of a group of bars; groups are 1 apart
_BAR, _ERROR = 0.92, 0.3  # in widths of its column: a bar, and how far right its error bar is
_LOG_FROM: Final = 20.0  # largest over smallest value, from which a linear scale hides the smallest
_DECADES: Final = 1e3  # largest over smallest value, from which only powers of ten are ticks
_DIGITS: Final = 110  # in the width of the axes, beside a wide legend
_LINE: Final = 24  # letters of a line of the legend


def paint(chart: Chart, *formats: str) -> list[bytes]:
    """Return *chart* as a file of each of *formats*, ``png`` (1600 pixels wide) or ``svg``.

    The same chart gives the same SVG again.
    """
    with mpl.rc_context(fname=STYLE):
        figure = compose(chart)
        files = [io.BytesIO() for _ in formats]
        for file, name in zip(files, formats, strict=True):
            figure.savefig(file, format=name, metadata={**_METADATA[name], "Title": chart.title})
        return [file.getvalue() for file in files]


def compose(chart: Chart) -> Figure:
    """Return *chart* as a figure, laid out; in the context of the style."""
    chart = chart if chart.kind == "points" else fit_unit(chart)
    figure = Figure(figsize=(16, 3 + 0.36 * len(chart.groups) if chart.kind == "ranges" else 9))
    FigureCanvasAgg(figure)  # makes itself the canvas of the figure
    title = figure.suptitle(chart.title, ha="left", wrap=True)
    note = figure.supxlabel(chart.note, ha="left", wrap=True, fontsize=10.5, color=_FAINT)
    axes = figure.add_subplot()
    axes.set_title(chart.subtitle, wrap=True)
    kinds = {"bars": _bars, "stacked": _stacks, "lines": _lines, "ranges": _ranges}
    kinds |= {"points": draw_points}
    kinds[chart.kind](chart, axes)
    if chart.reference:
        label = f"{chart.reference[0]}: {label_of(chart.reference[1])}"
        axes.axhline(chart.reference[1], color=_INK, linestyle="--", linewidth=1.6, label=label)
    handles, names = axes.get_legend_handles_labels()
    # The reference and crosses are lines, and come after the bars.
    order = sorted(range(len(names)), key=lambda place: isinstance(handles[place], Line2D))
    if names:
        wrapped = [textwrap.fill(names[place], _LINE) for place in order]
        axes.legend([handles[place] for place in order], wrapped, bbox_to_anchor=(1, 1))
    figure.draw_without_rendering()  # the layout, in which values find their places
    if chart.kind == "lines":
        label_points(axes, chart)
    elif chart.kind not in {"ranges", "points"}:
        label_bars(axes, stacked=chart.kind == "stacked")
    figure.draw_without_rendering()
    for text in (title, note):
        text.set_x(axes.get_position().x0)
    return figure


def _bars(chart: Chart, axes: Axes) -> None:
    """Draw bars side by side, with their error bars."""
    count = len(chart.series)
    width = _GROUP_WIDTH_SHARE / max(count, 2)
    missing: list[float] = []
    for number, series in enumerate(chart.series):
        shift = width * (number + 0.5 - count / 2)
        places = [group + shift for group in range(len(chart.groups))]
        hatch = _hatch_of(number)
        axes.bar(places, _numbers(series.values), width * _BAR, label=series.name, hatch=hatch)
        if series.low:
            ends = list(zip(_numbers(series.low), _numbers(series.high), strict=True))
            middles, halves = [(a + b) / 2 for a, b in ends], [(b - a) / 2 for a, b in ends]
            beside = [place + width * _ERROR for place in places]
            axes.errorbar(beside, middles, halves, fmt="none", ecolor=_INK, elinewidth=1.2)
        missing += [x for x, value in zip(places, series.values, strict=True) if value is None]
    _scale(chart, axes, missing)


def _stacks(chart: Chart, axes: Axes) -> None:
    """Draw stacked bars, and last an invisible bar as high as each stack, for its label."""
    groups = range(len(chart.groups))
    sums = [math.nan] * len(groups)
    for number, series in enumerate(chart.series):
        feet = [0.0 if math.isnan(height) else height for height in sums]
        values, width, hatch = _numbers(series.values), _GROUP_WIDTH_SHARE / 2, _hatch_of(number)
        axes.bar(groups, values, width, feet, label=series.name, hatch=hatch)
        rows = zip(sums, feet, series.values, strict=True)
        sums = [height if value is None else foot + value for height, foot, value in rows]
    axes.bar(groups, sums, _GROUP_WIDTH_SHARE / 2, label="_sum", color="none", edgecolor="none")
    for patch in axes.patches:  # so that there is room above every other foot
        patch.sticky_edges.y[:] = [0]
    _scale(chart, axes, [group for group in groups if math.isnan(sums[group])])


def _lines(chart: Chart, axes: Axes) -> None:
    """Draw lines from group to group, with a gap where a value is missing."""
    for series in chart.series:
        name = f"{series.name} (gap: {chart.gap})" if None in series.values else series.name
        (line,) = axes.plot(_numbers(series.values), label=name, markeredgecolor=_INK)
        line.sticky_edges.y.append(0)
    axes.update_datalim([(0, 0)], updatex=False)
    _scale(chart, axes, missing=())


def _ranges(chart: Chart, axes: Axes) -> None:
    """Draw a row for each group, from the top down: a bar from low to high, a dot at the value."""
    rows = range(len(chart.groups))
    for number, series in enumerate(chart.series):
        # A bar begins and ends between two sizes, so that a single size has a width.
        left = [low - 0.5 for low in _numbers(series.low)]
        widths = [
            high + 0.5 - begin for high, begin in zip(_numbers(series.high), left, strict=True)
        ]
        is_drawn = any(value is not None for value in series.values)
        axes.barh(rows, widths, 0.6, left, label=series.name if is_drawn else "_")
        dots = "_" if number else chart.dot
        axes.plot(_numbers(series.values), rows, "o", color=_INK, label=dots)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(rows, [textwrap.fill(name, 2 * _LINE) for name in chart.groups])
    axes.set(xlabel=chart.y_label, ylabel=chart.x_label, ylim=(len(rows) - 0.4, -0.6))
    axes.grid(axis="x")


def _scale(chart: Chart, axes: Axes, missing: Sequence[float]) -> None:
    """Name groups and axes, and take a log scale where the chart allows and needs one.

    A cross is put at the foot of each place in *missing*, and what it means into the legend.
    """
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(axis="y")
    values = [value for series in chart.series for value in series.values if value is not None]
    span = max(values) / min(values) if chart.log and values and min(values) > 0 else 1.0
    if span >= _LOG_FROM:
        axes.set(yscale="log", ylabel=f"{chart.y_label} (log scale)")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < _DECADES else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    if missing:
        at_foot, feet = axes.get_xaxis_transform(), [0.02] * len(missing)
        axes.plot(missing, feet, "x", color=_WARNING, label=chart.gap, transform=at_foot)
    count = len(chart.groups)
    width = max(count, 3)  # a single group is not spread over all of it
    axes.set_xlim((count - 1 - width) / 2, (count - 1 + width) / 2)
    room = max(_DIGITS // width, 1)
    names = [textwrap.fill(name, room, break_long_words=False) for name in chart.groups]
    if all(len(line) <= room for name in names for line in name.splitlines()):
        axes.set_xticks(range(count), names)
    else:
        names = [textwrap.fill(name, 2 * _LINE) for name in chart.groups]
        axes.set_xticks(range(count), names, rotation=30, ha="right", rotation_mode="anchor")


def _hatch_of(number: int) -> str:
    """Return the hatch of the bars of series *number*, whose colour other series may have too."""
    return _HATCHES[number // _COLOURS % len(_HATCHES)]


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
