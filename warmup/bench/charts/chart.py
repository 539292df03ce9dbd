"""Charts that say what they show: grouped bars or lines, as PNG and as SVG.

Only `draw` needs matplotlib, which is an extra; it is imported there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
