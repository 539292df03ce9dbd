"""Fields of the benchmark page about servers: their starts, mixes of request sizes, growth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from template import Count, Documents, Row, Values, each, grouped, over, verdict

from warmup.bench.charts.chart import Chart, Series

_CHANCE = 0.05  # that as many rounds are slower where both are as fast


class Ratios(dict[str, Any]):
    """Ratios of the medians of `Values`, called ``table over default``.

    ``range against default`` is the ratio, and in the next cell of a table whether the first is not
    slower beyond noise: whether toss-ups would make it slower in as many rounds more often than
    once of twenty times.
    """

    def __init__(self, values: Mapping[str, Values]) -> None:
        super().__init__()
        self._values = values

    def __missing__(self, name: str) -> float | str | None:
        how = " against " if " against " in name else " over "
        first, _, second = name.partition(how)
        ours, theirs = self._values.get(first), self._values.get(second)
        if not ours or not theirs:
            return None
        ratio = ours.median / theirs.median
        if how == " over ":
            return ratio
        rounds, slower = len(ours), sum(a > b for a, b in zip(ours, theirs, strict=True))
        chance = sum(math.comb(rounds, k) for k in range(slower, rounds + 1)) / 2**rounds
        words = f"{ratio:.3f}, slower in {slower} of {rounds} rounds"
        return f"{words} | {verdict(chance >= _CHANCE)}"


def _zeros(counts: Iterable[int]) -> Count:
    listed = list(counts)
    return Count(listed.count(0), len(listed))


def silent(documents: Documents) -> Count:
    """Count the servers that started from a table, and those that measured nothing."""
    starts: list[Row] = []
    for document in documents.values():
        has_table = document.get("case", {}).get("table")
        starts += [run for run in document.get("starts", ()) if has_table or "digest" in run]
        starts += [cell for cell in document.get("cells", ()) if cell.get("kind") == "table"]
        variants = [each for each in document.get("variants", ()) if "table" in each["name"]]
        starts += [variant["start"] for variant in variants if variant["start"]]
        starts += [run for run in document.get("runs", ()) if run["way"] == "range"]
    return _zeros(start["benchmarks"] + start.get("benchmarks_at_start", 0) for start in starts)


# -- starts ------------------------------------------------------------------------------------


def start_kinds(documents: Documents) -> list[Row]:
    """Return the starts by kind."""
    runs = []
    for start in each(documents, "starts"):
        sites = start["benchmarks_by_site"].items()
        gemms = sum(n for site, n in sites if site.startswith("select") or site == "fusion")
        own = {"of_gemms": gemms, "compiling": sum(start["seconds_by_bucket"])}
        if "digest" in start:
            own["installing"] = start.get("install_seconds")
        runs.append({**start, **own})
    kinds = grouped(runs, "start")
    for kind in kinds:
        by_bucket = zip(*kind.get("steady_us", ()), strict=True)
        kind["steady"] = [statistics.median(times) for times in by_bucket]
    return kinds


def seconds(documents: Documents) -> Ratios:
    """Return ratios of the seconds of kinds of start, without starts that refused a bundle."""
    taken = [run for run in each(documents, "starts") if run.get("bundle_refused") is None]
    return Ratios({kind["start"]: kind["seconds"] for kind in grouped(taken, "start")})


def brought(documents: Documents) -> list[Row]:
    """Return what a start from a bundle brings, and a start from Mega-cache."""
    (document,) = documents.values()
    saved = [run["mega_bytes"] for run in document["starts"] if run.get("mega_bytes")]
    bundles = [{"kind": kind, **bundle} for kind, bundle in document["bundles"].items()]
    return [*bundles, *({"kind": "mega-cache", "size": size} for size in saved[-1:])]


def sizes_brought(documents: Documents) -> Ratios:
    """Return ratios of the bytes that starts bring."""
    return Ratios({row["kind"]: Values([row["size"]]) for row in brought(documents)})


def ready(documents: Documents) -> Count:
    """Count the starts from a bundle, and those that measured nothing and compiled no kernel."""
    names = ("benchmarks", "configs_timed", "kernels_compiled")
    starts = [run for run in each(documents, "starts") if "kernels_compiled" in run]
    return _zeros(sum(start[name] for name in names) for start in starts)


def ways(documents: Documents) -> list[Row]:
    """Return starts by `warmup.compile`, by caches and by how the buckets are compiled."""
    return grouped(each(documents, "starts"), "caches", "way")


def with_empty_caches(documents: Documents) -> Ratios:
    """Return ratios of the seconds of ways to compile the buckets, with empty caches."""
    empty = [way for way in ways(documents) if way["caches"] == "empty"]
    return Ratios({way["way"]: way["seconds"] for way in empty})


def all_starts(documents: Documents) -> Row:
    """Return all starts as one row."""
    return grouped(each(documents, "starts"))[0]


# -- mixes of request sizes --------------------------------------------------------------------


def _totals(document: Any, *, is_alone: bool = False) -> dict[str, Values]:
    """Return the total of each round by way, with the host or for the device alone."""
    runs = {run["way"]: run for run in document["runs"] if "failed" not in run}
    if is_alone:
        runs = {way: run["device"] for way, run in runs.items() if "device" in run}
    return {way: Values(run["total_us"]) for way, run in runs.items()}


def mixed(documents: Documents) -> dict[str, Ratios]:
    """Return ratios of the totals of ways to serve a mix, with the host and on the device."""
    (document,) = documents.values()
    host, device = _totals(document), _totals(document, is_alone=True)
    return {"host": Ratios(host), "device": Ratios(device)}


def mix_rows(documents: Documents) -> list[Row]:
    """Return how every way served a mix; a way that failed has no times."""
    (document,) = documents.values()
    return _mix_rows(document, document["runs"], _totals(document))


def mix_on_device(documents: Documents) -> list[Row]:
    """Return what the device alone took for a mix."""
    (document,) = documents.values()
    runs = [{**run, **run["device"]} for run in document["runs"] if "device" in run]
    return _mix_rows(document, runs, _totals(document, is_alone=True))


def _mix_rows(document: Any, runs: list[Row], totals: Mapping[str, Values]) -> list[Row]:
    ratios, rows = Ratios(totals), []
    for run in runs:
        way = run["way"]
        own = {
            "over": {"static": ratios[f"{way} over static"], "range": ratios[f"range over {way}"]},
            "requests": len(document["mix"]) * len(totals.get(way, ())),
            "outside": sum(run["outside"].values()) if "outside" in run else None,
            "total_us": totals.get(way),
        }
        rows.append({**run, **own})
    return rows


def mix_failed(documents: Documents) -> list[Row]:
    """Return the ways that failed."""
    return [run for run in each(documents, "runs") if "failed" in run]


def mix_sizes(documents: Documents) -> list[int]:
    """Return the sizes of a mix."""
    return sorted(set(each(documents, "mix")))


def by_size(documents: Documents) -> list[Row]:
    """Return what a request takes by `range`, and by `static`, for each size of a mix."""
    runs = {run["way"]: run.get("us_by_size", {}) for run in each(documents, "runs")}
    ranged, static = runs["range"], runs["static"]
    return [
        {"size": size, "range": us, "static": static[size], "ratio": us / static[size]}
        for size, us in ranged.items()
        if size in static
    ]


def quiet(documents: Documents) -> Count:
    """Count recompiles and benchmarks of `range` after the first round: two, both of them 0."""
    runs = [run for run in each(documents, "runs") if run["way"] == "range"]
    return _zeros(run[name] for run in runs for name in ("recompiles", "benchmarks"))


def mix_chart(document: Any) -> Chart:
    """Return the chart of the total time of a mix, by way."""
    runtime, requests = document["runtime"], document["mix"]
    order = tuple(run["way"] for run in document["runs"])
    host, device = _totals(document), _totals(document, is_alone=True)
    series = []
    for name, totals in (("host and device", host), ("device alone", device)):
        rounds = [totals.get(way, Values()) / 1e3 for way in order]
        middle = tuple(values.median if values else None for values in rounds)
        low, high = (tuple(pick(v, default=None) for v in rounds) for pick in (min, max))
        series += [Series(name=name, values=middle, low=low, high=high)] if totals else []
    return Chart(
        title=f"{document['settings']['model'].rpartition(':')[2]}: a mix of sizes",
        subtitle=f"{len(requests)} requests of {len(set(requests))} sizes, {min(requests)} to "
        f"{max(requests)}, after each size was served once; median, fastest and slowest round; "
        "lower is better",
        x_label="way",
        y_label="total, ms",
        groups=order,
        series=tuple(series),
        note=f"{runtime['device']}, torch {runtime['torch']}, triton "
        f"{runtime['triton'] or 'none'}, {document['created'][:10]}",
    )


# -- growth ------------------------------------------------------------------------------------


def grown(documents: Documents) -> list[Row]:
    """Return what each start takes, by buckets and layers."""
    cells = [cell for cell in each(documents, "cells") if cell["kind"] != "build"]
    for cell in cells:
        cell["importing"] = cell["import_seconds"] + cell["install_seconds"]
    return sorted(cells, key=lambda cell: (cell["buckets"], cell["layers"], cell["kind"]))


def steps(documents: Documents) -> list[Row]:
    """Return the slopes of the time of compiling, which are equal where it grows linearly."""
    rows = []
    by_line = sorted(grown(documents), key=lambda cell: (cell["buckets"], cell["kind"]))
    for less, more in pairwise(by_line):
        if (less["kind"], less["buckets"]) == (more["kind"], more["buckets"]):
            compiling_s = more["compile_seconds"] - less["compile_seconds"]
            slope = compiling_s / (more["layers"] - less["layers"]) / more["buckets"]
            rows.append({**more, "less": less["layers"], "slope": slope})
    return rows


def builds(documents: Documents) -> list[Row]:
    """Return what builds take, and over a build of two layers with as many buckets."""
    cells = [cell for cell in each(documents, "cells") if cell["kind"] == "build"]
    two = {cell["buckets"]: cell["seconds"] for cell in cells if cell["layers"] == 2}
    for cell in cells:
        base = two.get(cell["buckets"]) if cell["layers"] > 2 else None
        cell["over_two"] = over(cell["seconds"], base)
    return sorted(cells, key=lambda cell: (cell["buckets"], cell["layers"]))


def build_over_two(documents: Documents) -> float | None:
    """Return the most that a build of many layers takes, over a build of two."""
    ratios = [cell["over_two"] for cell in builds(documents) if cell["over_two"]]
    return max(ratios, default=None)


def growth_charts(document: Any) -> dict[str, Chart]:
    """Return the seconds and the memory of a start by layers, a line for each kind and buckets."""
    machine = document["machine"]
    cells = {(c["buckets"], c["kind"], c["layers"]): c for c in grown({"": document})}
    layers, lines = sorted({key[2] for key in cells}), sorted({key[:2] for key in cells})
    charts = {}
    for ending, title, unit, field, scale in (
        ("seconds", "Start of a server", "s", "process_seconds", 1.0),
        ("memory", "Largest resident memory", "MiB", "resident_bytes", 2.0**20),
    ):
        series = []
        for buckets, kind in lines:
            line = [cells.get((buckets, kind, count)) for count in layers]
            values = tuple(cell[field] / scale if cell else None for cell in line)
            name = f"{kind}, {buckets} bucket{'s' if buckets > 1 else ''}"
            series.append(Series(name=name, values=values))
        charts[ending] = Chart(
            title=f"{title}, by layers and buckets",
            subtitle="a fresh process with empty caches, until every bucket gave its first "
            "output; lower is better",
            x_label="layers",
            y_label=unit,
            groups=tuple(map(str, layers)),
            series=tuple(series),
            kind="lines",
            gap="not measured",
            log=True,
            note=f"{machine['device']['name']}, torch {machine['torch']}, triton "
            f"{machine['triton'] or 'none'}, {document['cells'][0]['created'][:10]}",
        )
    return charts
