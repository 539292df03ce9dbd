"""Charts of a held-out report: predicted against measured times, and regret by size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.prediction.record import PERCENTILES, charts_note
from warmup.prediction.held_out import TOPS

_SERIES_NAMES: Final = {
    "library": "library alone",
    **{
        f"top_{top}": "first choice" if top == 1 else f"best of {top} and the library"
        for top in TOPS
    },
}


def held_out_charts(record: Mapping[str, Any]) -> dict[str, Chart]:
    """Return the charts of the document *record* by name; none where nothing was held out."""
    note, errors, regrets = charts_note(record), record["errors_by_time"], record["regret_by_size"]
    if not errors:
        return {}
    return {
        "predicted": Chart(
            title="Predicted over measured time of candidates of left-out models",
            subtitle="1 is exact. Between the 10th and the 90th percentile are eight of ten times.",
            x_label="measured time, from",
            y_label="predicted over measured time",
            groups=tuple(f"{each['from_us']:g} us ({each['times']})" for each in errors),
            series=tuple(
                Series(name=name, values=tuple(each[name] for each in errors))
                for name in PERCENTILES
            ),
            kind="lines",
            reference=("exact", 1.0),
            note=note,
        ),
        "regret": Chart(
            title="Time of the choice over the best time, on left-out models",
            subtitle="Lower is better, 1 is the best candidate. Geometric means.",
            x_label="operations of the GEMM, from",
            y_label="time over the best time",
            groups=tuple(f"{each['from_operations']:.0e} ({each['problems']})" for each in regrets),
            series=tuple(
                Series(name=shown, values=tuple(each[name] for each in regrets))
                for name, shown in _SERIES_NAMES.items()
            ),
            note=note,
        ),
    }
