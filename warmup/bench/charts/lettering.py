"""The texts of a chart: measured, wrapped, and placed where nothing else is.

Lengths are pixels of the PNG, sizes of fonts are points. Imported by `drawing` alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox, blended_transform_factory

from warmup.bench.charts.chart import Chart

WIDTH, HEIGHT, DPI = 1600, 900, 100
MARGIN, LEFT, RIGHT, GAP = 28, 112, 190, 14  # RIGHT is where the reference is named
TITLE, TEXT, TICK, SMALL = 21.0, 13.0, 12.0, 10.5
INK, FAINT = "#222222", "#595959"
GROUP_WIDTH: Final = 0.86  # of the distance between two groups
LIFT: Final = 4  # of a label above what it labels
_TINY: Final = 8.5
_PER_POINT: Final = DPI / 72
_WARNING: Final = "#B04400"
FAILED, CROSS = "failed", "\N{MULTIPLICATION SIGN}"
_LEADING: Final = 1.35  # line height in font sizes
_MARK: Final = 7  # half the size of a point, for labels that keep clear of it
_TURN: Final = 30  # degrees
_BOLD: Final = 0.9  # of the width that a bold text may take, since it is measured as a light one


@dataclass(frozen=True, slots=True)
class Mark:
    """A value to label: its place in the data, its bounds there, and how it is spelled."""

    x: float
    y: float
    below: float
    above: float
    text: str


@dataclass(frozen=True, slots=True)
class Form:
    """How labels of bars are written: size, upright or not, and the room they take above a bar."""

    size: float
    turned: bool
    room: float


class Page:
    """A figure on which texts are measured and placed, in pixels from the top left corner."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def size_of(self, text: str, size: float) -> tuple[float, float]:
        """Return width and height of one line of *text* in a font of *size* points."""
        shown = self.figure.text(0, 0, text or " ", fontsize=size)
        box = shown.get_window_extent()
        shown.remove()
        return box.width, box.height

    def wrap(self, text: str, size: float, width: float) -> list[str]:
        """Return *text* in lines no wider than *width*, where its words allow."""
        lines: list[str] = []
        for word in text.split():
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self.size_of(longer, size)[0] <= width:
                lines[-1] = longer
            else:
                lines.append(word)
        return lines

    def write(self, text: str, top: float, size: float, **style: Any) -> float:
        """Write *text* below *top* over the whole width; return where it ends."""
        share = _BOLD if style.get("weight") == "bold" else 1.0
        lines = self.wrap(text, size, (WIDTH - 2 * MARGIN) * share)
        for line in lines:
            x, y = MARGIN / WIDTH, 1 - top / HEIGHT
            self.figure.text(x, y, line, fontsize=size, ha="left", va="top", **style)
            top += height_of(size)
        return top

    def write_up(self, text: str, bottom: float, size: float, **style: Any) -> float:
        """Write *text* to end at *bottom*, both from the lower edge; return where it begins."""
        lines = self.wrap(text, size, WIDTH - 2 * MARGIN)
        begin = bottom + len(lines) * height_of(size)
        self.write(text, HEIGHT - begin, size, **style)
        return begin

    def legend(self, axes: Axes, top: float) -> float:
        """Place the legend below *top*, in as few rows as fit; return where it ends."""
        handles, names = axes.get_legend_handles_labels()
        columns = len(names)
        while columns:
            legend = self.figure.legend(
                handles,
                names,
                loc="upper left",
                bbox_to_anchor=(MARGIN / WIDTH, 1 - top / HEIGHT),
                ncols=columns,
                frameon=False,
                fontsize=TEXT,
                borderpad=0,
                borderaxespad=0,
            )
            box = legend.get_window_extent()
            if box.width <= WIDTH - 2 * MARGIN or columns == 1:
                return top + float(box.height)
            legend.remove()
            columns -= 1
        return top


def height_of(size: float) -> float:
    """Return the height of a line of *size* points."""
    return size * _LEADING * _PER_POINT


def label_of(value: float) -> str:
    """Return *value* with three significant digits, or all digits before the point if more."""
    for limit, digits in ((99.95, 0), (9.995, 1), (0.9995, 2)):
        if abs(value) >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.3g}"


def name_groups(chart: Chart, axes: Axes, page: Page, width: float) -> float:
    """Name the groups below the axes; return the height that this takes."""
    slot = width / max(len(chart.groups), 1) - GAP / 2
    for size, wraps in ((TICK, False), (SMALL, False), (TICK, True), (SMALL, True)):
        names = [page.wrap(group, size, slot) if wraps else [group] for group in chart.groups]
        widest = max((page.size_of(line, size)[0] for name in names for line in name), default=0.0)
        if widest <= slot:
            axes.set_xticks(
                range(len(chart.groups)), ["\n".join(name) for name in names], fontsize=size
            )
            return max((len(name) for name in names), default=1) * height_of(size)
    axes.set_xticks(
        range(len(chart.groups)),
        chart.groups,
        fontsize=SMALL,
        rotation=_TURN,
        ha="right",
        rotation_mode="anchor",
    )
    longest = max(page.size_of(group, SMALL)[0] for group in chart.groups)
    return longest * math.sin(math.radians(_TURN)) + height_of(SMALL)


def form_of(marks: Sequence[Mark], page: Page, bar: float) -> Form:
    """Return how the labels of bars that are *bar* wide are written.

    They lie where the widest fits over its bar, else they stand; without room there are none.
    """
    texts = {mark.text or FAILED for mark in marks}
    for turned in (False, True):
        for size in (SMALL, _TINY):
            sizes = [page.size_of(text, size) for text in texts]
            wide = max((width for width, _ in sizes), default=0.0)
            high = max((height for _, height in sizes), default=0.0)
            if (high if turned else wide) <= bar:
                return Form(size, turned, wide if turned else high)
    return Form(_TINY, turned=True, room=0.0)


def label_bars(axes: Axes, marks: Sequence[Mark], form: Form) -> bool:
    """Write each value above its bar, and where one is missing that it failed.

    Return whether a cross had to say that, since there was no room for the word.
    """
    foot = blended_transform_factory(axes.transData, axes.transAxes)
    shown = marks if form.room else [mark for mark in marks if not mark.text]
    for mark in shown:
        missing = not mark.text
        axes.annotate(
            mark.text or (FAILED if form.room else CROSS),
            (mark.x, 0.0 if missing else mark.above),
            xycoords=foot if missing else axes.transData,
            xytext=(0, LIFT / _PER_POINT),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=form.size,
            rotation=90 if form.turned else 0,
            color=_WARNING if missing else INK,
            zorder=6,
            # Over the line of the reference, not under it.
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.85},
        )
    return bool(shown) and not form.room


def label_points(
    axes: Axes,
    marks: Sequence[Mark],
    lines: Sequence[Sequence[float]],
    page: Page,
    reference: tuple[str, float] | None,
) -> None:
    """Write values above or below their points, where no point, line or other value is."""
    taken = [_around(axes, mark) for mark in marks if mark.text]
    taken += [box for line in lines for box in _along(axes, line)]
    if reference:
        y = axes.transData.transform((0, reference[1]))[1]
        taken.append(Bbox.from_extents(0, y - 2, WIDTH, y + 2))
    frame = axes.get_window_extent()
    for mark in marks:
        if not mark.text:
            continue
        wide, high = page.size_of(mark.text, SMALL)
        for up in (True, False):
            own = _around(axes, mark)
            x, foot = (own.x0 + own.x1) / 2, own.y1 + LIFT if up else own.y0 - LIFT - high
            box = Bbox.from_bounds(x - wide / 2, foot, wide, high)
            # Clear of what is beyond it too, or it would seem to name another point.
            clear = Bbox.from_extents(
                box.x0, box.y0 - (0 if up else GAP), box.x1, box.y1 + (GAP if up else 0)
            )
            if box.y0 > frame.y0 and not any(clear.overlaps(other) for other in taken):
                taken.append(box)
                x, y = axes.transData.inverted().transform((x, foot))
                axes.text(x, y, mark.text, fontsize=SMALL, ha="center", va="bottom", zorder=6)
                break


def _around(axes: Axes, mark: Mark) -> Bbox:
    """Return the box around a point and its bounds."""
    ends = [(mark.x, y) for y in (mark.below, mark.y, mark.above)]
    (x, low), (_, middle), (_, high) = axes.transData.transform(ends)
    return Bbox.from_extents(
        x - _MARK, min(low, middle - _MARK), x + _MARK, max(high, middle + _MARK)
    )


def _along(axes: Axes, line: Sequence[float]) -> Iterator[Bbox]:
    """Yield boxes along *line*, close to each other."""
    for place, (left, right) in enumerate(pairwise(line)):
        if math.isnan(left) or math.isnan(right):
            continue
        (x0, y0), (x1, y1) = axes.transData.transform([(place, left), (place + 1, right)])
        pieces = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / _MARK))
        for piece in range(pieces + 1):
            x, y = (x0 + (x1 - x0) * piece / pieces, y0 + (y1 - y0) * piece / pieces)
            yield Bbox.from_extents(x - 2, y - 2, x + 2, y + 2)


def refer(axes: Axes, page: Page, name: str, value: float) -> None:
    """Draw the line of the reference, named at its right end outside of the axes."""
    axes.axhline(value, color=INK, linestyle=(0, (6, 4)), linewidth=1.6, zorder=3)
    lines = [*page.wrap(name, TICK, RIGHT - MARGIN), label_of(value)]
    axes.annotate(
        "\n".join(lines),
        (1.0, value),
        xycoords=axes.get_yaxis_transform(),
        xytext=(LIFT * 2, 0),
        textcoords="offset points",
        ha="left",
        va="center",
        fontsize=TICK,
        annotation_clip=False,
    )
