"""Charts of a comparison, drawn from the JSON document that `warmup compare` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from warmup.bench.charts.chart import Chart, Series


def charts_of(record: Mapping[str, Any]) -> dict[str, Chart]:
    """Return the charts of the document *record* by name, without those that have no value to draw.

    Without measured device peaks, as on a CPU, the bandwidth chart would show the arithmetic chart
    on another scale, so it is left out where there is an arithmetic chart.
    """
    origin, peaks, here = record["origin"], record["peaks"], record["origin"]["runtime"]
    model, dtype, l2 = origin["model"].rpartition(":")[2], origin["dtype"], origin.get("l2", "warm")
    shared: dict[str, Any] = {
        "note": f"{here['device']['name']}, torch {here['torch']}, "
        f"triton {here['triton'] or 'none'}, warmup {origin['warmup']}, {origin['created'][:10]}"
    }
    by_bucket: dict[str, Any] = {
        **shared,
        "x_label": "bucket",
        "groups": tuple(
            ",".join(f"{name}={size}" for name, size in bucket["bucket"].items())
            for bucket in record["buckets"]
        ),
    }
    peak = peaks and peaks["tflops"].get(dtype)
    charts = {
        "latency": Chart(
            title=f"Latency of {model}",
            subtitle=f"Lower is better. Median device time of one call: launch {origin['launch']}, "
            f"{l2} L2, {origin['rounds']} rounds, 95 % intervals.",
            y_label="device time, us",
            series=_series(record, "median_us"),
            log=True,
            **by_bucket,
        ),
        "bandwidth": Chart(
            title=f"Memory bandwidth of {model}",
            subtitle="Higher is better. Weights, inputs and outputs moved once, over the median "
            "device time.",
            y_label="memory bandwidth, GB/s",
            series=_series(record, "gbps"),
            reference=peaks and ("measured peak", peaks["gbps"]),
            **by_bucket,
        ),
        "tflops": Chart(
            title=f"Arithmetic of {model}",
            subtitle="Higher is better. Operations of the eager model over the median device time.",
            y_label="arithmetic, TFLOP/s",
            series=_series(record, "tflops"),
            reference=peak and (f"measured {dtype} peak", peak),
            **by_bucket,
        ),
        "start": Chart(
            title=f"Start of {model}",
            subtitle="Lower is better. From the start of the process to the first outputs of all "
            "buckets, with empty caches.",
            x_label="variant",
            y_label="time, s",
            groups=tuple(variant["name"] for variant in record["variants"]),
            series=_phases([variant["start"] for variant in record["variants"]]),
            kind="stacked",
            **shared,
        ),
    }
    drawn = {name: chart for name, chart in charts.items() if _has_value(chart)}
    if peaks is None and "tflops" in drawn:
        drawn.pop("bandwidth", None)
    return drawn


def _has_value(chart: Chart) -> bool:
    return any(value is not None for series in chart.series for value in series.values)


def _series(record: Mapping[str, Any], field: str) -> tuple[Series, ...]:
    """Return *field* of each timed variant, by bucket; the median comes with its interval."""
    buckets = [
        {timed["name"]: timed for timed in bucket["variants"]} for bucket in record["buckets"]
    ]
    bounds = "interval_us" if field == "median_us" else None
    return tuple(
        Series(
            name=name,
            values=tuple(bucket[name][field] for bucket in buckets),
            low=tuple(bucket[name][bounds][0] for bucket in buckets) if bounds else (),
            high=tuple(bucket[name][bounds][1] for bucket in buckets) if bounds else (),
        )
        for name in buckets[0]
    )


def _phases(starts: Sequence[Mapping[str, Any] | None]) -> tuple[Series, ...]:
    """Return the seconds of each phase, by variant; None where a variant has no start."""
    phases: list[Any] = [start and _phases_of(start) for start in starts]
    names = next((list(start) for start in phases if start), [])
    return tuple(
        Series(name=name, values=tuple(start and start[name] for start in phases)) for name in names
    )


def _phases_of(start: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of each phase; their sum is the whole start."""
    total, calls = start["process_seconds"], start["call_seconds"]
    if "measure_seconds" not in start:  # in documents from before phases were timed
        before = {"importing and loading": total - calls}
        return {**before, "first calls: compiling, measuring": calls}
    importing = start["import_seconds"] + start["install_seconds"]
    loading, measuring = start["load_seconds"], start["measure_seconds"]
    return {
        "importing": importing,
        "loading the model": loading,
        "first calls: compiling": total - importing - loading - measuring,
        "first calls: measuring": measuring,
    }
