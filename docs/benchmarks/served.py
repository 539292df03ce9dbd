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


def start_kinds(documents: Documents) -> list[Row]:
    """Return the starts by kind."""
    runs = []
    for start in each(documents, "starts"):
        sites = start["benchmarks_by_site"].items()
        gemms = sum(n for site, n in sites if site.startswith("select") or site == "fusion")
        found = {"of_gemms": gemms, "compiling": sum(start["seconds_by_bucket"])}
        if "digest" in start:
            found["installing"] = start.get("install_seconds")
        runs.append({**start, **found})
    kinds = grouped(runs, "start")
    for kind in kinds:
        by_bucket = zip(*kind.get("steady_us", ()), strict=True)
        kind["steady"] = [statistics.median(times) for times in by_bucket]
    return kinds


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


def seconds(documents: Documents) -> Ratios:
    """Return ratios of the seconds of kinds of start, without starts that refused a bundle."""
    taken = [one for one in each(documents, "starts") if one.get("bundle_refused") is None]
    return Ratios({kind["start"]: kind["seconds"] for kind in grouped(taken, "start")})


def sizes_brought(documents: Documents) -> Ratios:
    """Return ratios of the bytes that starts bring."""
    return Ratios({one["kind"]: Values([one["size"]]) for one in brought(documents)})


def ready(documents: Documents) -> Count:
    """Count the starts from a bundle, and those that measured nothing and compiled no kernel."""
    names = ("benchmarks", "configs_timed", "kernels_compiled")
    starts = [one for one in each(documents, "starts") if "kernels_compiled" in one]
    return _none(sum(one[name] for name in names) for one in starts)


def silent(documents: Documents) -> Count:
    """Count the servers that started from a table, and those that measured nothing."""
    found = []
    for document in documents.values():
        has_table = document.get("case", {}).get("table")
        starts = document.get("starts", ())
        found += [one["benchmarks"] for one in starts if has_table or "digest" in one]
        cells, runs = document.get("cells", ()), document.get("runs", ())
        found += [one["benchmarks"] for one in cells if one.get("kind") == "table"]
        found += [one["benchmarks_at_start"] for one in runs if one["way"] == "range"]
        variants = [one["start"] for one in document.get("variants", ()) if "table" in one["name"]]
        found += [start["benchmarks"] for start in variants if start]
    return _none(found)


def _none(counts: Iterable[int]) -> Count:
    found = list(counts)
    return Count(found.count(0), len(found))


def brought(documents: Documents) -> list[Row]:
    """Return what a start from a bundle brings, and one from Mega-cache."""
    (document,) = documents.values()
    saved = [one["mega_bytes"] for one in document["starts"] if one.get("mega_bytes")]
    bundles = [{"kind": kind, **bundle} for kind, bundle in document["bundles"].items()]
    return [*bundles, *({"kind": "mega-cache", "size": size} for size in saved[-1:])]


def ways(documents: Documents) -> list[Row]:
    """Return starts by `warmup.compile`, by caches and by how the buckets are compiled."""
    return grouped(each(documents, "starts"), "caches", "way")


def with_empty_caches(documents: Documents) -> Ratios:
    """Return ratios of the seconds of ways to compile the buckets, with empty caches."""
    return Ratios(
        {one["way"]: one["seconds"] for one in ways(documents) if one["caches"] == "empty"}
    )


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
    return _mix(document, document["runs"], _totals(document))


def mix_on_device(documents: Documents) -> list[Row]:
    """Return what the device alone took for a mix."""
    (document,) = documents.values()
    runs = [{**run, **run["device"]} for run in document["runs"] if "device" in run]
    return _mix(document, runs, _totals(document, is_alone=True))


def _mix(document: Any, runs: list[Row], found: Mapping[str, Values]) -> list[Row]:
    ratios, rows = Ratios(found), []
    for run in runs:
        way = run["way"]
        over = {"static": ratios[f"{way} over static"], "range": ratios[f"range over {way}"]}
        requests = len(document["mix"]) * len(found.get(way, ()))
        outside = sum(run["outside"].values()) if "outside" in run else None
        own = {"over": over, "requests": requests, "outside": outside}
        rows.append({**run, **own, "total_us": found.get(way)})
    return rows


def by_size(documents: Documents) -> list[Row]:
    """Return what a request takes from `range`, and by `static`, for each size of a mix."""
    runs = {run["way"]: run for run in each(documents, "runs") if "failed" not in run}
    both = runs["range"]["us_by_size"], runs["static"]["us_by_size"]
    return [
        {"size": size, "range": us, "static": both[1][size], "ratio": us / both[1][size]}
        for size, us in both[0].items()
    ]


def quiet(documents: Documents) -> Count:
    """Count recompiles and benchmarks of `range` after the first round: two, both of them 0."""
    runs = [run for run in each(documents, "runs") if run["way"] == "range"]
    return _none(run[name] for run in runs for name in ("recompiles", "benchmarks"))


def mix_failed(documents: Documents) -> list[Row]:
    """Return the ways that failed."""
    return [run for run in each(documents, "runs") if "failed" in run]


def mix_sizes(documents: Documents) -> list[int]:
    """Return the sizes of a mix."""
    return sorted(set(each(documents, "mix")))


def mix_chart(document: Any) -> Chart:
    """Return the chart of the total time of a mix, by way."""
    at, requests = document["runtime"], document["mix"]
    alone = _totals(document, is_alone=True)
    by_name = {"host and device": _totals(document), "device alone": alone}
    order = tuple(run["way"] for run in document["runs"])
    series = []
    for name, found in by_name.items():
        rounds = [found.get(way, Values()) / 1e3 for way in order]
        bounds = [tuple(pick(one, default=None) for one in rounds) for pick in (min, max)]
        middle = tuple(one.median if one else None for one in rounds)
        series += [Series(name=name, values=middle, low=bounds[0], high=bounds[1])] if found else []
    return Chart(
        title=f"{document['settings']['model'].rpartition(':')[2]}: a mix of sizes",
        subtitle=f"{len(requests)} requests of {len(set(requests))} sizes, {min(requests)} to "
        f"{max(requests)}, after each size was served once; median, fastest and slowest round; "
        "lower is better",
        x_label="way",
        y_label="total, ms",
        groups=order,
        series=tuple(series),
        note=f"{at['device']}, torch {at['torch']}, triton {at['triton'] or 'none'}, "
        f"{document['created'][:10]}",
    )


# -- growth ------------------------------------------------------------------------------------


def grown(documents: Documents) -> list[Row]:
    """Return what each start takes, by buckets and layers."""
    rows = [one for one in each(documents, "cells") if one["kind"] != "build"]
    for row in rows:
        row["importing"] = row["import_seconds"] + row["install_seconds"]
    return sorted(rows, key=lambda one: (one["buckets"], one["layers"], one["kind"]))


def steps(documents: Documents) -> list[Row]:
    """Return the slopes of the time of compiling, which are equal where it grows linearly."""
    rows = []
    by_line = sorted(grown(documents), key=lambda one: (one["buckets"], one["kind"]))
    for less, more in pairwise(by_line):
        if (less["kind"], less["buckets"]) == (more["kind"], more["buckets"]):
            compiling_s = more["compile_seconds"] - less["compile_seconds"]
            slope = compiling_s / (more["layers"] - less["layers"]) / more["buckets"]
            rows.append({**more, "less": less["layers"], "slope": slope})
    return rows


def builds(documents: Documents) -> list[Row]:
    """Return what builds take, and over a build of two layers with as many buckets."""
    found = [one for one in each(documents, "cells") if one["kind"] == "build"]
    two = {one["buckets"]: one["seconds"] for one in found if one["layers"] == 2}
    rows = sorted(found, key=lambda one: (one["buckets"], one["layers"]))
    ratios = [over(one["seconds"], two.get(one["buckets"])) for one in rows]
    return [
        {**one, "over_two": ratio if one["layers"] > 2 else None}
        for one, ratio in zip(rows, ratios, strict=True)
    ]


def build_over_two(documents: Documents) -> float | None:
    """Return the most that a build of many layers takes, over a build of two."""
    return max((one["over_two"] for one in builds(documents) if one["over_two"]), default=None)


def growth_charts(document: Any) -> dict[str, Chart]:
    """Return the seconds and the memory of a start by layers, a line for each kind and buckets."""
    machine = document["machine"]
    cells = {(one["buckets"], one["kind"], one["layers"]): one for one in grown({"": document})}
    layers, lines = (
        sorted({pick(key) for key in cells}) for pick in (lambda k: k[2], lambda k: k[:2])
    )
    charts = {}
    for ending, title, unit, field, scale in (
        ("seconds", "Start of a server", "s", "process_seconds", 1.0),
        ("memory", "Largest resident memory", "MiB", "resident_bytes", 2.0**20),
    ):
        series = []
        for buckets, kind in lines:
            line = [cells.get((buckets, kind, count)) for count in layers]
            values = tuple(one and one[field] / scale for one in line)
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
