"""`Chart`: bars of several series side by side in groups; `draw` writes it as PNG.

matplotlib, the extra `charts`, is imported when a chart is drawn.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warmup.core.errors import SettingsError
from warmup.core.files import make_folder, write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bar = tuple[float, float, float]  # a value between its lower and its upper bound

_NO_BAR: Final = (math.nan, math.nan, math.nan)
_INK, _FAINT, _WARNING = "#222222", "#595959", "#B04400"
# Okabe and Ito's colours, told apart with every common form of colour blindness.
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_HATCHES: Final = ("", "//", "xx", "..")  # the next hatch after every series of all colours
_GROUP_WIDTH: Final = 0.86  # of a group of bars; groups are 1 apart
_ERROR_AT: Final = 0.3  # right of the middle of a bar, in widths: beside the value above it
_MOST_VALUES: Final = 60  # bars that have their value written above them
_MOST_LEVEL: Final = 24  # bars whose values stand level
_LETTERS: Final = 110  # below the axes
_STYLE: Final[Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 13,
    "text.color": _INK,
    "text.parse_math": False,
    "axes.axisbelow": True,
    **dict.fromkeys(("axes.spines.left", "axes.spines.right", "axes.spines.top"), False),
    "axes.titlecolor": _FAINT,
    "axes.titlelocation": "left",
    "axes.titlepad": 14,
    "axes.titlesize": 13,
    "errorbar.capsize": 3,
    "figure.constrained_layout.use": True,
    "figure.titlesize": 20,
    "figure.titleweight": "bold",
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A bar for each series in each group, with its bounds; None where a series failed there.

    ``x_label`` names the groups, ``y_label`` the values with their unit; ``subtitle`` says which
    values are better, ``reference`` is a horizontal line with its name, and ``note`` the line at
    the bottom: device, versions, date.

    Raises:
        ValueError: the bars of a series are not as many as the groups.
    """

    title: str
    subtitle: str
    x_label: str
    y_label: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[Bar | None]]
    reference: tuple[str, float] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for name, bars in self.series.items():
            if len(bars) != len(self.groups):
                raise ValueError(f"{name}: not one bar for each of the {len(self.groups)} groups")


def draw(chart: Chart, path: Path) -> None:
    """Write *chart* to *path* as PNG, 1600 pixels wide.

    Raises:
        SettingsError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise SettingsError(
            "charts are drawn by matplotlib, which is not installed here",
            'install it with `pip install "inductor-warmup[charts]"` or `pip install matplotlib`',
        ) from error
    make_folder(path.parent, "charts")
    content = io.BytesIO()
    with mpl.rc_context(_STYLE):
        compose(chart).savefig(content, format="png", dpi=100)
    write_output(path, content.getvalue(), "chart")


def compose(chart: Chart) -> Figure:
    """Return *chart* as a figure of matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 9))
    FigureCanvasAgg(figure)  # makes itself the canvas of the figure
    figure.suptitle(chart.title, x=0.05, ha="left", wrap=True)
    figure.supxlabel(chart.note, x=0.05, ha="left", wrap=True, fontsize=10.5, color=_FAINT)
    axes = figure.add_subplot()
    axes.set_title(chart.subtitle, wrap=True)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(axis="y")
    missing = _draw_bars(chart, axes)
    if missing:
        at_foot, feet = axes.get_xaxis_transform(), [0.02] * len(missing)
        axes.plot(missing, feet, "x", color=_WARNING, label="no time", transform=at_foot)
    if chart.reference:
        name, height = chart.reference
        axes.axhline(height, color=_INK, linestyle="--", label=f"{name}: {label_of(height)}")
    room = max(_LETTERS // max(len(chart.groups), 3), 1)
    names = [textwrap.fill(group, room) for group in chart.groups]
    is_narrow = any(len(line) > room for name in names for line in name.splitlines())
    slant: dict[str, Any] = {"rotation": 30, "ha": "right"} if is_narrow else {}
    axes.set_xticks(range(len(names)), chart.groups if is_narrow else names, **slant)
    if chart.series:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _draw_bars(chart: Chart, axes: Axes) -> list[float]:
    """Draw the bars with their bounds and values; return the places of values that are missing."""
    missing: list[float] = []
    width = _GROUP_WIDTH / max(len(chart.series), 2)
    count = len(chart.series) * len(chart.groups)
    for number, (name, series) in enumerate(chart.series.items()):
        shift = width * (number + 0.5 - len(chart.series) / 2)
        places = [group + shift for group in range(len(chart.groups))]
        low, values, high = zip(*(bar or _NO_BAR for bar in series), strict=True)
        bars = axes.bar(
            places,
            values,
            width * 0.92,
            label=textwrap.fill(name, 24),
            color=_COLOURS[number % len(_COLOURS)],
            hatch=_HATCHES[number // len(_COLOURS) % len(_HATCHES)],
            edgecolor=_INK,
            linewidth=0.6,
        )
        beside = [place + width * _ERROR_AT for place in places]
        middles = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        halves = [(b - a) / 2 for a, b in zip(low, high, strict=True)]
        axes.errorbar(beside, middles, halves, fmt="none", ecolor=_INK, elinewidth=1.2)
        if count <= _MOST_VALUES:
            texts = ["" if bar is None else label_of(bar[1]) for bar in series]
            turn = 0 if count <= _MOST_LEVEL else 90
            axes.bar_label(bars, texts, padding=3, fontsize=9, rotation=turn)
        missing += [x for x, bar in zip(places, series, strict=True) if bar is None]
    axes.margins(y=0.12)
    return missing


def label_of(value: float) -> str:
    """Return *value* with three significant digits, or all digits before the point if more."""
    for limit, digits in ((99.95, 0), (9.995, 1), (0.9995, 2)):
        if abs(value) >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.3g}"
