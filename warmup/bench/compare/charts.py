"""The chart of a comparison, from the JSON document that `warmup compare` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from warmup.bench.charts import Chart, Series

_BASES: Final = ("default", "eager")


def chart_of(record: Mapping[str, Any]) -> Chart:
    """Return the chart of the document *record*: the speed of each variant, by bucket.

    A speed is the median of default mode over that of the variant, or of eager where default mode
    was not timed, with the 95 % interval of the variant.
    """
    origin, here = record["origin"], record["origin"]["runtime"]
    buckets = [
        {timed["name"]: timed for timed in bucket["variants"]} for bucket in record["buckets"]
    ]
    timed = [name for name in buckets[0] if any(each[name]["median_us"] for each in buckets)]
    base = next((name for name in _BASES if name in timed), timed[0] if timed else "")

    def series(name: str) -> Series:
        rows = [_speeds(bucket.get(base), bucket[name]) for bucket in buckets]
        low, values, high = zip(*rows, strict=True)
        return Series(name=name, values=values, low=low, high=high)

    return Chart(
        title=f"Speed of {origin['model'].rpartition(':')[2]} over {base}",
        subtitle=f"Higher is better. Device time of one call: launch {origin['launch']}, "
        f"{origin.get('l2', 'warm')} L2, medians of {origin['rounds']} rounds, 95 % intervals.",
        x_label="bucket",
        y_label=f"times as fast as {base}",
        groups=tuple(
            ",".join(f"{name}={size}" for name, size in bucket["bucket"].items())
            for bucket in record["buckets"]
        ),
        series=tuple(map(series, timed)),
        reference=(base, 1.0),
        note=f"{here['device']['name']}, torch {here['torch']}, "
        f"triton {here['triton'] or 'none'}, warmup {origin['warmup']}, {origin['created'][:10]}",
    )


def _speeds(base: Mapping[str, Any] | None, timed: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Return the least speed, the speed and the largest speed of *timed* over *base*."""
    if base is None or not base["median_us"] or not timed["median_us"]:
        return None, None, None
    low, high = timed["interval_us"]
    return tuple(base["median_us"] / time_us for time_us in (high, timed["median_us"], low))
