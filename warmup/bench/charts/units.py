"""`fit_unit`: a chart in the unit in which its largest value lies between 1 and 999."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from warmup.bench.charts.chart import Chart

# The units of each quantity, from the smallest on.
_QUANTITIES: Final[tuple[Mapping[str, float], ...]] = (
    {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    {unit: 1024.0**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
    {f"{prefix}B/s": 1e3**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    {f"{prefix}FLOP/s": 1e3**power for power, prefix in enumerate(("", "k", "M", "G", "T", "P"))},
)
_MAX_SHOWN: Final = 999.5  # three digits print it as 1000


def fit_unit(chart: Chart) -> Chart:
    """Return *chart* in the smallest unit of its quantity in which no value is over 999.

    A chart of another quantity, or without a value other than zero, is returned as it is.
    """
    what, comma, unit = chart.y_label.rpartition(", ")
    units = next((units for units in _QUANTITIES if unit in units), {})
    largest = max(_sizes(chart), default=0.0) * units.get(unit, 0.0)
    if not largest:
        return chart
    chosen = next((name for name in units if largest / units[name] < _MAX_SHOWN), [*units][-1])
    factor = units[unit] / units[chosen]

    def convert(row: tuple[float | None, ...]) -> tuple[float | None, ...]:
        return tuple(None if value is None else value * factor for value in row)

    return replace(
        chart,
        y_label=f"{what}{comma}{chosen}",
        series=tuple(
            replace(
                each, values=convert(each.values), low=convert(each.low), high=convert(each.high)
            )
            for each in chart.series
        ),
        reference=chart.reference and (chart.reference[0], chart.reference[1] * factor),
    )


def _sizes(chart: Chart) -> Iterator[float]:
    """Yield the absolute values of all bars, lines, bounds and the reference."""
    rows = [row for each in chart.series for row in (each.values, each.low, each.high) if row]
    if chart.kind == "stacked":
        rows = [tuple(sum(value or 0.0 for value in stack) for stack in zip(*rows, strict=True))]
    yield from (abs(value) for row in rows for value in row if value is not None)
    if chart.reference:
        yield abs(chart.reference[1])
