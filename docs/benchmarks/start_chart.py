"""The README's picture: how long a start takes, and what it measures, with and without a table.

`render.py` draws it, from files of `starts.py`, one or two for each model.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Final

from warmup.bench.charts.chart import Chart, Series

MODELS: Final = {
    "two Llama-8B-shaped layers": ("llama-h200",),
    "SwiGLU MLP with unaligned sizes": ("swiglu-h200", "swiglu-cold-h200"),
}
_STARTS: Final = {
    "default": "default mode",
    "max-autotune": "max-autotune",
    "mega-cache": "max-autotune from torch's saved artifacts",
    "table": "table",
    "table-warm": "table, compile caches warm",
}


def start_chart(documents: Mapping[str, Any]) -> Chart:
    """Return seconds as bars, with the number of benchmarks in the name of each start.

    *documents* has every file of `MODELS`, by name.
    """
    records = {name: [documents[file] for file in files] for name, files in MODELS.items()}
    found = {name: _by_kind(files) for name, files in records.items()}
    first = next(iter(records.values()))[0]
    machine, sizes = first["machine"], ", ".join(map(str, first["seqlens"]))
    return Chart(
        title="What a start takes, and what it measures, with and without a table",
        subtitle="seconds for importing inductor and compiling all five buckets, in a process of "
        "its own, with empty caches unless stated; lower is better",
        x_label="start, and how many benchmarks it ran for either model",
        y_label="seconds",
        groups=tuple(
            f"{title}: {_counted(starts[kind] for starts in found.values())}"
            for kind, title in _STARTS.items()
        ),
        series=tuple(
            Series(
                name=name,
                values=tuple(_seconds(starts[kind]) for kind in _STARTS),
                low=tuple(min(one["seconds"] for one in starts[kind]) for kind in _STARTS),
                high=tuple(max(one["seconds"] for one in starts[kind]) for kind in _STARTS),
            )
            for name, starts in found.items()
        ),
        note=f"{machine['device']['name']}, torch {machine['torch']}, triton {machine['triton']}, "
        f"bf16; buckets of {sizes} rows; medians, and the fastest and slowest where a start ran "
        "more than once",
    )


def _by_kind(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    starts = [start for record in records for start in record["starts"]]
    return {kind: [one for one in starts if one["start"] == kind] for kind in _STARTS}


def _seconds(starts: Iterable[Mapping[str, Any]]) -> float:
    return round(statistics.median(start["seconds"] for start in starts), 1)


def _counted(models: Iterable[Iterable[Mapping[str, Any]]]) -> str:
    """Return the benchmarks of one kind of start, once where they are those of every model."""
    counts = [next(iter(starts))["benchmarks"] for starts in models]
    each = counts[:1] if len(set(counts)) == 1 else counts
    return " and ".join(map(str, each)) + " benchmarks"
