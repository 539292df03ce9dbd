"""Section of the benchmark page about mixes of request sizes; `render.py` puts it there.

It takes files of `shapes.py`, one a model, and returns Markdown, empty without them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proof import CHARTS, charts, grid, load
from targets import NOT_MEASURED, at_least, at_most, count_of, median_of, none_of, verdict

from warmup.charts.chart import Chart, Series, draw

_RANGE, _STATIC = "range", "static"
_SMALLEST, _LARGEST = "dynamic-smallest", "dynamic-largest"
_LEAST_SPEED = 2.5  # over dynamic-smallest
_MOST_TIME = 1.03  # over static

_Runs = Sequence[Mapping[str, Any]]  # of one way, those that did not fail


def mixes(names: Sequence[str], title: str, note: str) -> str:
    """Return how a mix of sizes was served in each way."""
    records = {name: record for name in names if (record := load(name)) is not None}
    if not records:
        return ""
    said = (
        "*Start* is until every size was served once; what was measured and compiled *at first* is "
        "of that time, *after* of the rounds that are timed. *Total* is the time of all requests, "
        "the median of the rounds and in brackets the fastest and the slowest; p50 and p99 are "
        "over the requests, each by its median of the rounds. `dynamic-smallest` and "
        "`dynamic-largest` are torch.compile in mode max-autotune-no-cudagraphs with the dim "
        "marked dynamic, named for the first request; `static` is the same mode with every size "
        "compiled and tuned for itself; `range` and `pad` are `warmup.compile` from the table. One "
        "total is over another beyond noise where each of its rounds took longer than each of the "
        "other's."
    )
    sections = [_section(name, record) for name, record in records.items()]
    return "\n\n".join([f"## {title}", said, *sections, note])


def draw_charts(names: Sequence[str]) -> None:
    """Draw the total time of the mix by way, a chart for each file that is there.

    Raises:
        SettingsError: matplotlib is not installed, or the files cannot be written.
    """
    for name in names:
        if (record := load(name)) is not None:
            draw(_chart(record), CHARTS / f"{name}-total")


def _chart(record: Mapping[str, Any]) -> Chart:
    by_way, at, mix = _by_way(record), record["runtime"], record["mix"]
    totals = [_totals_ms(runs) for runs in by_way.values()]
    return Chart(
        title=f"{record['settings']['model'].rpartition(':')[2]}: a mix of sizes",
        subtitle=f"{len(mix)} requests of {len(set(mix))} sizes, {min(mix)} to {max(mix)}, after "
        "each size was served once; median, fastest and slowest round; lower is better",
        x_label="way",
        y_label="total, ms",
        groups=tuple(by_way),
        series=(
            Series(
                name="total",
                values=tuple(statistics.median(v) if v else None for v in totals),
                low=tuple(min(v, default=None) for v in totals),
                high=tuple(max(v, default=None) for v in totals),
            ),
        ),
        note=f"{at['device']}, torch {at['torch']}, triton {at['triton'] or 'none'}, "
        f"{record['created'][:10]}",
    )


_HEAD = (
    *("way", "start, s", "benchmarks at first", "after", "graphs compiled at first", "after"),
    *("total, ms", "p50, us", "p99, us", f"total over `{_STATIC}`"),
)


def _section(name: str, record: Mapping[str, Any]) -> str:
    """Return one model: where it ran, every way, what became of the targets, and the chart."""
    by_way = _by_way(record)
    ranged, static = by_way.get(_RANGE, []), by_way.get(_STATIC, [])
    rows = [_row(way, runs, static) for way, runs in by_way.items()]
    failed = [
        f"- `{run['way']}` failed: {run['failed']}" for run in record["runs"] if "failed" in run
    ]
    parts = (
        _facts(record),
        grid(_HEAD, rows),
        "\n".join(failed),
        grid((f"target of `{_RANGE}`", "measured"), _targets(by_way)),
        " ".join(filter(None, (_worst(ranged, static), _from_table(ranged)))),
        charts(name),
    )
    return "\n\n".join(filter(None, parts))


def _facts(record: Mapping[str, Any]) -> str:
    at, settings, mix = record["runtime"], record["settings"], record["mix"]
    table = f"`{Path(settings['table']).name}`" if settings["table"] else "none"
    sizes = sorted(set(mix))
    listed = f" ({', '.join(map(str, sizes))})" if len(sizes) <= 12 else ""
    return (
        f"`{settings['model']}`, buckets {settings['buckets'].replace(',', ', ')}, table {table}; "
        f"{at['device']}, torch {at['torch']}, triton {at['triton'] or 'none'}, "
        f"{record['created'][:10]}; {len(mix)} requests of {len(sizes)} sizes{listed}, served in "
        f"{settings['rounds']} rounds; each way is a process of its own, started with empty caches:"
    )


def _row(way: str, runs: _Runs, static: _Runs) -> Sequence[Any]:
    if not runs:
        return (way, "failed", *[""] * (len(_HEAD) - 2))
    over = _over(runs, static)
    graphs = [run["graphs_at_start"] for run in runs if "graphs_at_start" in run]
    return (
        *(way, median_of([run["start_seconds"] for run in runs])),
        *(_count(runs, "benchmarks_at_start"), _count(runs, "benchmarks")),
        *(count_of(graphs) or "not recorded", _count(runs, "recompiles")),
        *(median_of(_totals_ms(runs)), median_of([run["p50_us"] for run in runs])),
        *(median_of([run["p99_us"] for run in runs]), "" if over is None else f"{over:.3f}"),
    )


def _targets(by_way: Mapping[str, _Runs]) -> Sequence[tuple[str, str]]:
    """Return each target of the policy `range`, and whether it was reached."""
    ranged, static, largest = (by_way.get(way, []) for way in (_RANGE, _STATIC, _LARGEST))
    faster = _over(by_way.get(_SMALLEST, []), ranged)
    over_largest, held = _over(ranged, largest), NOT_MEASURED
    if over_largest is not None:
        is_slower = min(_totals_ms(ranged)) > max(_totals_ms(largest))
        held = f"{over_largest:.3f}, {verdict(not is_slower)}"
    most = f"at most {_MOST_TIME} times the total of `{_STATIC}`"
    return (
        (
            f"at least {_LEAST_SPEED} times as fast in total as `{_SMALLEST}`",
            at_least(faster, _LEAST_SPEED),
        ),
        (f"total not over that of `{_LARGEST}` beyond noise", held),
        (most, at_most(_over(ranged, static), _MOST_TIME)),
        ("no recompile after the first round", none_of([run["recompiles"] for run in ranged])),
        ("no benchmark after the first round", none_of([run["benchmarks"] for run in ranged])),
    )


def _worst(ranged: _Runs, static: _Runs) -> str:
    """Return the size at which `range` takes longest over `static`; empty where not timed."""
    if not ranged or not static:
        return ""
    over = {
        size: statistics.median(run["us_by_size"][size] for run in ranged)
        / statistics.median(run["us_by_size"][size] for run in static)
        for size in ranged[0]["us_by_size"]
    }
    size = max(over, key=over.__getitem__)
    return f"`{_RANGE}` over `{_STATIC}` is {over[size]:.3f} at the worst size, {size}."


def _from_table(ranged: _Runs) -> str:
    """Return what the table answered, and what the buckets did not serve."""
    if not ranged:
        return ""
    outside: dict[str, int] = {}
    for run in ranged:
        for why, count in run["outside"].items():
            outside[why] = outside.get(why, 0) + count
    calls = ", ".join(f"{count} {why}" for why, count in outside.items())
    return (
        f"`{_RANGE}` had {_count(ranged, 'hits')} hits and {_count(ranged, 'misses')} misses in "
        f"its table, {_count(ranged, 'recompiles_of_buckets')} artifacts beyond one for each "
        f"bucket, and calls outside of its buckets: {calls or 'none'}."
    )


def _by_way(record: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the runs of each way; none where all of them failed."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in record["runs"]:
        runs = found.setdefault(run["way"], [])
        if "failed" not in run:
            runs.append(run)
    return found


def _totals_ms(runs: _Runs) -> list[float]:
    """Return the total of every round of every run."""
    return [total_us / 1e3 for run in runs for total_us in run["total_us"]]


def _over(runs: _Runs, base: _Runs) -> float | None:
    """Return the total of *runs* over that of *base*; None where one was not timed."""
    if not runs or not base:
        return None
    return statistics.median(_totals_ms(runs)) / statistics.median(_totals_ms(base))


def _count(runs: _Runs, name: str) -> str:
    return count_of([run[name] for run in runs])
