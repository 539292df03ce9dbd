"""Charts of a comparison, drawn from the JSON document that `warmup compare` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.charts.starts import start_chart
from warmup.bench.compare.comparison import How
from warmup.core.dtypes import narrowest

_START: Final = "Lower is better. From the start of the process"


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
        "groups": tuple(_name_of(bucket) for bucket in record["buckets"]),
    }
    dtypes = {name for entry in record["buckets"] for name in entry.get("dtypes", ())}
    dtype = narrowest(dtypes, origin["dtype"])
    peak, variants = peaks and peaks["tflops"].get(dtype), record["variants"]
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
        "start": start_chart(
            f"Start of {model}",
            f"{_START} to the first outputs of all buckets, with empty caches.",
            {each["name"]: each["start"] and _phases_of(each["start"]) for each in variants},
            x_label="variant",
            note=shared["note"],
        ),
        **_starts_by_bucket(record, shared["note"]),
    }
    drawn = {name: chart for name, chart in charts.items() if _has_value(chart)}
    if peaks is None and "tflops" in drawn:
        drawn.pop("bandwidth", None)
    return drawn


def _name_of(bucket: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={size}" for name, size in bucket["bucket"].items())


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


def _starts_by_bucket(record: Mapping[str, Any], note: str) -> dict[str, Chart]:
    """Return a chart of the start of each compiled variant, where there are several buckets."""
    model = record["origin"]["model"].rpartition(":")[2]
    names = [_name_of(bucket) for bucket in record["buckets"]]
    starts = {
        each["name"]: each["start"]
        for each in record["variants"]
        if each["start"] and "phases" in each["start"] and each["how"] != How.EAGER
    }
    return {
        f"start-{variant}": start_chart(
            f"Start of {model}, variant {variant}",
            f"{_START} to the first call, and then to the first output of each bucket.",
            {
                "before": start["phases_before"],
                **{
                    name: output["phases"]
                    for name, output in zip(names, start["outputs"], strict=True)
                },
            },
            x_label="bucket",
            note=note,
        )
        for variant, start in starts.items()
        if len(names) > 1
    }


def _phases_of(start: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the seconds of each phase; their sum is the whole start."""
    if "phases" in start:
        phases: Mapping[str, float] = start["phases"]
        return phases
    calls = start["call_seconds"]  # documents of schema 1 have no phases
    before = start["process_seconds"] - calls
    return {"importing and loading": before, "first calls: compiling, measuring": calls}
