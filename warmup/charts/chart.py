"""Charts that say what they show: grouped bars or lines, as PNG and as SVG. Floor 2.

Only `draw` needs matplotlib, which is an extra; it is imported there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from warmup.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One variant: a value for each group, None where it failed, and the bounds of each value.

    ``low`` and ``high`` are values too, not distances; empty without error bars.
    """

    name: str
    values: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What one chart says. ``groups`` are the positions along x, each with a value of each series.

    ``subtitle`` says what better is, the axis labels have the units, ``reference`` is a horizontal
    line with its name, and ``note`` is the line at the bottom: machine, versions, date.
    ``gap`` says what it is when a line has no value.
    """

    title: str
    subtitle: str
    x_label: str
    y_label: str
    groups: tuple[str, ...]
    series: tuple[Series, ...]
    kind: Literal["bars", "lines"] = "bars"
    reference: tuple[str, float] | None = None
    log: bool = False
    note: str = ""
    gap: str = "failed"


def draw(chart: Chart, path: Path) -> tuple[Path, Path]:
    """Write *chart* to *path* with the suffixes .png and .svg, and return both paths.

    A suffix of these two that *path* has already is replaced; any other is part of the name. The
    same chart gives the same SVG again. The folder is made where there is none.

    Raises:
        SettingsError: matplotlib is not installed, or the files cannot be written.
        ValueError: a series has not one value for each group.
    """
    check_matplotlib()
    from warmup.charts.drawing import paint

    stem = path.with_suffix("") if path.suffix in {".png", ".svg"} else path
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        paint(chart, png, svg)
    except OSError as error:
        raise SettingsError(
            f"{png}: cannot write the chart: {error.strerror}", "name a writable folder"
        ) from error
    return png, svg


def check_matplotlib() -> None:
    """Return when charts can be drawn here.

    Raises:
        SettingsError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: F401  asked for before what needs it is imported
    except ImportError as error:
        raise SettingsError(
            "charts are drawn by matplotlib, which is not installed here",
            'install it with `pip install "inductor-warmup[charts]"` or `pip install matplotlib`',
        ) from error
