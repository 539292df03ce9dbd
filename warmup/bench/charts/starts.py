"""`start_chart`: what starts were made of, as stacked bars, from the phases in JSON documents."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from warmup.bench.charts.chart import Chart, Series
from warmup.core.phases import Phase

_LEAST_SHARE: Final = 0.01  # of the highest bar; what is lower has no visible height
_OTHER: Final = "other, and below 1 %"


def start_chart(
    title: str,
    subtitle: str,
    bars: Mapping[str, Mapping[str, float] | None],
    *,
    x_label: str,
    note: str,
) -> Chart:
    """Return the chart of *bars*, each of which has seconds by phase, or None where it failed.

    Phases that are below 1 % of the highest bar in every bar are added to `Phase.OTHER`. A name
    that is no `Phase` is drawn too, below the phases.
    """
    entered = dict.fromkeys(name for bar in bars.values() if bar for name in bar)
    highest = max((sum(bar.values()) for bar in bars.values() if bar), default=0.0)
    visible = {
        name
        for name in entered
        if any(bar and bar.get(name, 0.0) >= _LEAST_SHARE * highest for bar in bars.values())
    }
    phases = {str(phase): phase.label for phase in Phase if phase in visible}
    labels = {name: name for name in entered if name in visible and name not in phases} | phases
    drawn = {name: None if bar is None else _joined(bar, visible) for name, bar in bars.items()}
    if any(bar and bar.get(Phase.OTHER) for bar in drawn.values()):
        labels[Phase.OTHER] = _OTHER if visible < entered.keys() else Phase.OTHER.label
    return Chart(
        title=title,
        subtitle=subtitle,
        x_label=x_label,
        y_label="time, s",
        groups=tuple(bars),
        series=tuple(
            Series(
                name=label,
                values=tuple(None if bar is None else bar.get(name, 0.0) for bar in drawn.values()),
            )
            for name, label in labels.items()
        ),
        kind="stacked",
        note=note,
    )


def _joined(bar: Mapping[str, float], visible: Collection[str]) -> dict[str, float]:
    """Return *bar* with the phases that are not *visible* added to `Phase.OTHER`."""
    joined = {name: seconds for name, seconds in bar.items() if name in visible}
    rest = sum(seconds for name, seconds in bar.items() if name not in visible)
    joined[Phase.OTHER] = joined.get(Phase.OTHER, 0.0) + rest
    return joined
