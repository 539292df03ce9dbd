"""`Chart`: the content of a chart as data. `draw` renders charts, with the extra `charts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One variant: a value for each group, None where the variant failed there.

    ``low`` and ``high`` are the bounds of each value, in the same unit; empty without bounds.
    """

    name: str
    values: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The roofline of a device, and where groups stand under it.

    ``positions`` has the FLOPs per byte of each group, ``marks`` the name of its marker. The roof
    is *gbps* times the position, and at most *tflops* where that is known.
    """

    positions: tuple[float, ...]
    marks: tuple[str, ...]
    gbps: float | None
    tflops: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A value of each series in each group.

    ``kind``: ``bars`` side by side, with their bounds; bars ``stacked`` in each group; ``lines``
    from group to group; ``ranges``, a row for each group with a bar from low to high on a scale
    of powers of two, and a dot, named ``dot``, at the value; or ``points`` under ``roof``, in
    TFLOP/s by FLOPs per byte, a colour for each series and a marker for each mark.

    ``x_label`` names the groups, ``y_label`` the values, ending with their unit: ``total, ms`` or
    ``ms``. A unit of `charts.units` is replaced by the unit in which the largest value lies between
    1 and 999. ``log`` allows a log scale, used from a largest value of 20 times the smallest.

    ``subtitle`` says which values are better, ``reference`` is a horizontal line with its name,
    ``note`` the line at the bottom (device, versions, date), ``gap`` why a value is missing.

    Raises:
        ValueError: the values or the bounds of a series are not as many as the groups.
    """

    title: str
    subtitle: str
    x_label: str
    y_label: str
    groups: tuple[str, ...]
    series: tuple[Series, ...]
    kind: Literal["bars", "stacked", "lines", "ranges", "points"] = "bars"
    reference: tuple[str, float] | None = None
    log: bool = False
    note: str = ""
    gap: str = "failed"
    dot: str = ""
    roof: Roof | None = None

    def __post_init__(self) -> None:
        count = len(self.groups)
        for series in self.series:
            bounds = {len(series.low), len(series.high)}
            if len(series.values) != count or bounds not in ({0}, {count}):
                raise ValueError(f"{series.name}: not one value for each of the {count} groups")
