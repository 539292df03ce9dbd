"""Section of the benchmark page about growth with layers and buckets; `render.py` puts it there.

It takes files of `growth.py`, one for each machine, and returns Markdown, empty without a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from proof import CHARTS, charts, grid, load
from targets import verdict

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.charts.draw import draw

_STARTS = ("table", "default")
_MOST_BUILD = 1.3  # times the seconds of two layers
_MIB = 2**20

_Cell = Mapping[str, Any]
_Value = Callable[[_Cell], float]


def growth(name: str, title: str, note: str) -> str:
    """Return what starts and builds take, by layers and buckets."""
    record = load(name)
    if record is None:
        return ""
    cells = sorted(record["cells"], key=lambda one: (one["buckets"], one["layers"], one["kind"]))
    starts = [one for one in cells if one["kind"] in _STARTS]
    builds = [one for one in cells if one["kind"] == "build"]
    parts = [f"## {title}", _facts(record), grid(_START_HEAD, map(_start, starts))]
    if steps := _steps(starts):
        parts.append(grid(_STEP_HEAD, steps))
    if builds:
        parts.append(grid(_BUILD_HEAD, [_build(one, builds) for one in builds]))
    return "\n\n".join(filter(None, [*parts, note, charts(name)]))


def draw_charts(name: str) -> None:
    """Draw the seconds and the memory of a start by layers, a line for each kind and buckets.

    Raises:
        SettingsError: matplotlib is not installed, or the files cannot be written.
    """
    record = load(name)
    if record is None:
        return
    wanted: tuple[tuple[str, str, str, _Value], ...] = (
        ("seconds", "Start of a server", "s", lambda one: float(one["process_seconds"])),
        ("memory", "Largest resident memory", "MiB", lambda one: one["resident_bytes"] / _MIB),
    )
    for ending, said, unit, value in wanted:
        draw(_chart(record, said, unit, value), CHARTS / f"{name}-{ending}")


def _chart(record: Mapping[str, Any], said: str, unit: str, value: _Value) -> Chart:
    starts = [one for one in record["cells"] if one["kind"] in _STARTS]
    found = {(one["kind"], one["buckets"], one["layers"]): value(one) for one in starts}
    layers = sorted({key[2] for key in found})
    lines = sorted({key[:2] for key in found}, key=lambda line: line[::-1])
    machine = record["machine"]
    return Chart(
        title=f"{said}, by layers and buckets",
        subtitle="a fresh process with empty caches, until every bucket gave its first output; "
        "lower is better",
        x_label="layers",
        y_label=unit,
        groups=tuple(map(str, layers)),
        series=tuple(
            Series(
                name=f"{kind}, {buckets} bucket{'s' if buckets > 1 else ''}",
                values=tuple(found.get((kind, buckets, count)) for count in layers),
            )
            for kind, buckets in lines
        ),
        kind="lines",
        gap="not measured",
        log=True,
        note=f"{machine['device']['name']}, torch {machine['torch']}, "
        f"triton {machine['triton'] or 'none'}, {record['cells'][0]['created'][:10]}",
    )


_START_HEAD = (
    *("start", "layers", "buckets", "seconds", "importing", "loading", "compiling", "first calls"),
    *("benchmarks", "hits / misses", "resident, MiB", "with workers, MiB", "device, MiB"),
    *("weights, MiB", "caches, MiB"),
)


def _start(cell: _Cell) -> Sequence[Any]:
    lookups = f"{cell['hits']} / {cell['misses']}" if "hits" in cell else ""
    device = f"{cell['device_bytes'] / _MIB:.0f}" if "device_bytes" in cell else ""
    return (
        *(cell["kind"], cell["layers"], cell["buckets"], f"{cell['process_seconds']:.1f}"),
        *(f"{cell['import_seconds'] + cell['install_seconds']:.1f}", f"{cell['load_seconds']:.1f}"),
        *(f"{cell['compile_seconds']:.1f}", f"{cell['first_call_seconds']:.1f}"),
        *(cell["benchmarks"], lookups, f"{cell['resident_bytes'] / _MIB:.0f}"),
        *(f"{cell['resident_bytes_with_workers'] / _MIB:.0f}", device),
        *(f"{cell['weight_bytes'] / _MIB:.0f}", f"{cell['cache_bytes'] / _MIB:.1f}"),
    )


_STEP_HEAD = ("start", "buckets", "layers", "compiling: s for one layer more in one bucket")


def _steps(starts: Sequence[_Cell]) -> list[Sequence[Any]]:
    """Return the slopes of the time of compiling, which are equal where it grows linearly."""
    rows: list[Sequence[Any]] = []
    for kind, buckets in dict.fromkeys((one["kind"], one["buckets"]) for one in starts):
        line = [one for one in starts if (one["kind"], one["buckets"]) == (kind, buckets)]
        for less, more in pairwise(line):
            layers = more["layers"] - less["layers"]
            slope = (more["compile_seconds"] - less["compile_seconds"]) / layers / buckets
            span = f"{less['layers']} to {more['layers']}"
            rows.append((kind, buckets, span, f"{slope:.2f}"))
    return rows


_BUILD_HEAD = (
    *("build: layers", "buckets", "seconds", "over two layers", "problems", "candidates"),
    *("resident, MiB", "target"),
)


def _build(cell: _Cell, builds: Sequence[_Cell]) -> Sequence[Any]:
    same = [one for one in builds if (one["layers"], one["buckets"]) == (2, cell["buckets"])]
    ratio = cell["seconds"] / same[0]["seconds"] if same and cell is not same[0] else None
    reached = "" if ratio is None else verdict(ratio <= _MOST_BUILD)
    return (
        *(cell["layers"], cell["buckets"], f"{cell['seconds']:.1f}"),
        *("" if ratio is None else f"{ratio:.2f}x", cell["problems"], cell["candidates"]),
        *(f"{cell['resident_bytes'] / _MIB:.0f}", reached and f"{_MOST_BUILD}x, {reached}"),
    )


def _facts(record: Mapping[str, Any]) -> str:
    machine, cells = record["machine"], record["cells"]
    ((width, sizes),) = record["width"].items()
    spelled = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return (
        f"{machine['device']['name']}, {machine['cores']} cores, torch {machine['torch']}, triton "
        f"{machine['triton'] or 'none'}, Python {machine['python']}, {cells[0]['created'][:10]}; "
        f"equal Llama-shaped layers of the width `{width}` ({spelled}) in bf16; buckets are the "
        f"first of {', '.join(map(str, record['sizes']))} rows. Every start and build once, in a "
        "process of its own with empty caches, by `docs/benchmarks/growth.py`."
    )
