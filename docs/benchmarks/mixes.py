"""Section of the benchmark page about mixes of request sizes; `render.py` puts it there.

It takes files of `shapes.py`, one a model, and returns Markdown, empty without them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proof import CHARTS, charts, grid, load
from targets import NOT_MEASURED, at_least, at_most, count_of, median_of, none_of, verdict

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.charts.draw import draw

_RANGE, _STATIC, _DEVICE = "range", "static", "device"
_SMALLEST, _LARGEST = "dynamic-smallest", "dynamic-largest"
_LEAST_SPEED = 2.5  # over dynamic-smallest
_MOST_TIME = 1.03  # over static
_CHANCE = 0.05  # that as many rounds are slower where both are as fast

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
        "compiled and tuned for itself; `range` and `pad` are `warmup.compile` from the table. On "
        "the device a request takes what its kernels do while the host is ahead of them; where the "
        "host was late at three tries, that is in the time. One total is over another beyond noise "
        "where it took longer in so many rounds as toss-ups would in fewer than one of twenty."
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
    measured = {"host and device": by_way, "device alone": _on_device(by_way)}
    return Chart(
        title=f"{record['settings']['model'].rpartition(':')[2]}: a mix of sizes",
        subtitle=f"{len(mix)} requests of {len(set(mix))} sizes, {min(mix)} to {max(mix)}, after "
        "each size was served once; median, fastest and slowest round; lower is better",
        x_label="way",
        y_label="total, ms",
        groups=tuple(by_way),
        series=tuple(
            Series(
                name=name,
                values=tuple(statistics.median(v) if v else None for v in totals),
                low=tuple(min(v, default=None) for v in totals),
                high=tuple(max(v, default=None) for v in totals),
            )
            for name, runs in measured.items()
            if any(totals := [_totals_ms(runs[way]) for way in by_way])
        ),
        note=f"{at['device']}, torch {at['torch']}, triton {at['triton'] or 'none'}, "
        f"{record['created'][:10]}",
    )


_TIMES_HEAD = ("total, ms", "p50, us", "p99, us", f"total over `{_STATIC}`")
_HEAD = (
    *("way", "start, s", "benchmarks at first", "after", "graphs compiled at first", "after"),
    *_TIMES_HEAD,
)
_DEVICE_HEAD = ("on the device", *_TIMES_HEAD, "requests with a late host")


def _section(name: str, record: Mapping[str, Any]) -> str:
    """Return one model: where it ran, every way, what became of the targets, and the chart."""
    by_way = _by_way(record)
    on_device = _on_device(by_way)
    ranged, static = by_way.get(_RANGE, []), by_way.get(_STATIC, [])
    rows = [_row(way, runs, static) for way, runs in by_way.items()]
    alone = [
        (way, *_times(runs, on_device.get(_STATIC, [])), _late(record, by_way[way]))
        for way, runs in on_device.items()
    ]
    failed = [
        f"- `{run['way']}` failed: {run['failed']}" for run in record["runs"] if "failed" in run
    ]
    parts = (
        _facts(record),
        grid(_HEAD, rows),
        "\n".join(failed),
        grid(_DEVICE_HEAD, alone) if any(on_device.values()) else "",
        grid((f"target of `{_RANGE}`", "measured", "on the device"), _targets(by_way, on_device)),
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
    graphs = [run["graphs_at_start"] for run in runs if "graphs_at_start" in run]
    return (
        *(way, median_of([run["start_seconds"] for run in runs])),
        *(_count(runs, "benchmarks_at_start"), _count(runs, "benchmarks")),
        *(count_of(graphs) or "not recorded", _count(runs, "recompiles")),
        *_times(runs, static),
    )


def _times(runs: _Runs, static: _Runs) -> Sequence[str]:
    over = _over(runs, static)
    return (
        *(median_of(_totals_ms(runs)), median_of([run["p50_us"] for run in runs])),
        *(median_of([run["p99_us"] for run in runs]), "" if over is None else f"{over:.3f}"),
    )


def _late(record: Mapping[str, Any], runs: _Runs) -> str:
    """Return for what part of all requests the host was late at every try."""
    late = sum(run.get("late", 0) for run in runs)
    requests = len(record["mix"]) * sum(len(run["total_us"]) for run in runs)
    return f"{late} of {requests}"


def _targets(
    by_way: Mapping[str, _Runs], on_device: Mapping[str, _Runs]
) -> Sequence[tuple[str, str, str]]:
    """Return each target of the policy `range`, and whether it was reached."""
    both = (by_way, on_device)
    ranged = by_way.get(_RANGE, [])
    return (
        (
            f"at least {_LEAST_SPEED} times as fast in total as `{_SMALLEST}`",
            *(at_least(_over_of(each, _SMALLEST, _RANGE), _LEAST_SPEED) for each in both),
        ),
        (f"total not over that of `{_LARGEST}` beyond noise", *map(_held, both)),
        (
            f"at most {_MOST_TIME} times the total of `{_STATIC}`",
            *(at_most(_over_of(each, _RANGE, _STATIC), _MOST_TIME) for each in both),
        ),
        ("no recompile after the first round", none_of([run["recompiles"] for run in ranged]), ""),
        ("no benchmark after the first round", none_of([run["benchmarks"] for run in ranged]), ""),
    )


def _held(by_way: Mapping[str, _Runs]) -> str:
    """Return `range` over `dynamic-largest`, in how many rounds it was slower, and the verdict."""
    over = _over_of(by_way, _RANGE, _LARGEST)
    if over is None:
        return NOT_MEASURED
    pairs = list(zip(*(_totals_ms(by_way[way]) for way in (_RANGE, _LARGEST)), strict=True))
    rounds = len(pairs)
    slower = sum(ours > theirs for ours, theirs in pairs)
    chance = sum(math.comb(rounds, k) for k in range(slower, rounds + 1)) / 2**rounds
    return f"{over:.3f}, slower in {slower} of {rounds} rounds, {verdict(chance >= _CHANCE)}"


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


def _on_device(by_way: Mapping[str, _Runs]) -> dict[str, list[Mapping[str, Any]]]:
    """Return what the runs of each way took on the device alone; none where not measured."""
    return {way: [run[_DEVICE] for run in runs if run.get(_DEVICE)] for way, runs in by_way.items()}


def _totals_ms(runs: _Runs) -> list[float]:
    """Return the total of every round of every run."""
    return [total_us / 1e3 for run in runs for total_us in run["total_us"]]


def _over(runs: _Runs, base: _Runs) -> float | None:
    """Return the total of *runs* over that of *base*; None where one was not timed."""
    if not runs or not base:
        return None
    return statistics.median(_totals_ms(runs)) / statistics.median(_totals_ms(base))


def _over_of(by_way: Mapping[str, _Runs], way: str, base: str) -> float | None:
    return _over(by_way.get(way, []), by_way.get(base, []))


def _count(runs: _Runs, name: str) -> str:
    return count_of([run[name] for run in runs])
