"""Fields of the benchmark page from files of `warmup compare` and `warmup bench`.

A ratio is that of the two printed medians; its interval comes from the ratios of single rounds, as
in `compare`. Two times are within noise where the intervals of their medians overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from template import Count, Documents, Row, each

from warmup.bench.charts.chart import Chart, Series
from warmup.bench.compare.comparison import BucketTime, Ratio
from warmup.bench.compare.verdict import ratio
from warmup.core.samples import Samples, geomean

TUNED, TABLE, PADDED = "max-autotune", "table", "table-padded"
OTHERS = ("eager", "default", TUNED)
WITH_EPILOGUE = ("BiasGelu", "SiluMul", "Residual")
MOST_SLOWER = 0.02  # than the fastest other variant

Cells = Mapping[str, BucketTime]  # by variant


def cells(documents: Documents) -> list[Row]:
    """Return every variant in every bucket."""
    return [
        {**variant, "sizes": ", ".join(f"{dim}={size}" for dim, size in bucket["bucket"].items())}
        for bucket in each(documents, "buckets")
        for variant in bucket["variants"]
    ]


def measured(documents: Documents) -> Iterator[tuple[dict[str, Any], Cells]]:
    """Yield each bucket, with its sizes and origin, and its cells.

    A variant that disagrees with eager has no cell. Documents of one model must have been measured
    alike.
    """
    origins: dict[str, Row] = {}
    for document in documents.values():
        origin = document["origin"]
        model = origin["model"].rpartition(":")[2]
        for name in ("digest", "runtime", "launch", "l2", "rounds", "dtype"):
            first = origins.setdefault(model, origin)
            assert first.get(name) == origin.get(name), f"{model}: {name}"
        for bucket in document["buckets"]:
            cells = {
                variant["name"]: BucketTime(
                    device=Samples(tuple(variant["device_times_us"])),
                    wall=Samples(tuple(variant["wall_times_us"])),
                    error=variant["error"],
                    limit=variant["limit"],
                    host=Samples(tuple(variant["host_times_us"]))
                    if variant.get("host_times_us")
                    else None,
                )
                for variant in bucket["variants"]
                if variant["agrees"]
            }
            yield {**origin, **bucket["bucket"], "model": model}, cells


def model(documents: Documents) -> str:
    """Return the name of the model that was compared."""
    name: str = next(measured(documents))[0]["model"]
    return name


def faster(cells: Cells, name: str, base: str) -> Ratio | None:
    """Return how many times faster *name* is than *base*; None where one was not timed."""
    return ratio(cells[base], cells[name]) if base in cells and name in cells else None


def is_slower(cells: Cells, name: str, base: str) -> bool:
    """Whether *name* takes longer than *base*, beyond noise."""
    both = base in cells and name in cells
    return both and cells[name].interval_us[0] > cells[base].interval_us[1]


def us(cells: Cells, name: str) -> str:
    """Return the median of *name* as it is printed."""
    return f"{cells[name].median_us:g}" if name in cells else "failed"


def speed(documents: Documents) -> dict[str, dict[int, float]]:
    """Return how many times faster than max-autotune a table serves, by variant and rows."""
    gains: dict[str, dict[int, float]] = {TABLE: {}, PADDED: {}}
    for bucket, cells in measured(documents):
        for name, by_rows in gains.items():
            if gain := faster(cells, name, TUNED):
                by_rows[bucket["seqlen"]] = gain.value
    return gains


def padded(documents: Documents) -> list[Row]:
    """Return layers with unaligned weights by number of rows, served in every way."""
    rows = []
    for bucket, cells in measured(documents):
        slower = [name for name in (*OTHERS, TABLE) if is_slower(cells, PADDED, name)]
        words = ", ".join(f"`{name}`, {faster(cells, PADDED, name)}" for name in slower)
        times = {name: us(cells, name) for name in (*OTHERS, TABLE, PADDED)}
        gain = str(faster(cells, PADDED, TUNED) or "failed")
        rows.append({**bucket, **times, "gain": gain, "slower": words})
    return rows


def padded_not_slower(documents: Documents) -> Count:
    """Count the layers and sizes, and where padded weights are not slower than max-autotune."""
    slower = [is_slower(cells, PADDED, TUNED) for _, cells in measured(documents)]
    return Count(slower.count(False), len(slower))


def layers(documents: Documents) -> list[Row]:
    """Return layers by number of rows, in CUDA graphs and launched one by one, without padding."""
    rows = []
    for bucket, cells in measured(documents):
        times = {name: us(cells, name) for name in (*OTHERS, TABLE)}
        over = {base: str(faster(cells, TABLE, base) or "failed") for base in OTHERS[1:]}
        costs = {name: each.cost for name, each in cells.items()}
        launched = {name: f"{cost.launched_us:g}" for name, cost in costs.items() if cost}
        rows.append({**bucket, **times, "over": over, "launched": launched})
    return rows


# -- products with what follows them -----------------------------------------------------------


def fastest(cells: Cells) -> str:
    """Return the fastest variant without a table, the first where none was timed."""
    timed = [name for name in OTHERS if name in cells]
    return min(timed, key=lambda name: cells[name].median_us, default=OTHERS[0])


def shapes_by_m(documents: Documents) -> list[Row]:
    """Return the products of one class, a row for each N x K, with a text for each M."""
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for size, cells in measured(documents):
        best = fastest(cells)
        gain, best_us, table_us = faster(cells, TABLE, best), us(cells, best), us(cells, TABLE)
        text = f"{best_us} {best[0]}; {table_us}; {gain.value:.2f}" if gain else "failed"
        rows.setdefault((size["n"], size["k"]), {**size, "by_m": {}})["by_m"][size["m"]] = text
    return list(rows.values())


def slower_products(documents: Documents) -> list[Row]:
    """Return the products whose table is slower than the fastest other variant by too much."""
    rows = []
    for size, cells in measured(documents):
        best, text = fastest(cells), "failed"
        if gain := faster(cells, TABLE, best):
            share = cells[TABLE].median_us / cells[best].median_us - 1
            if share <= MOST_SLOWER:
                continue
            noise = "beyond" if is_slower(cells, TABLE, best) else "within"
            text = (
                f"{us(cells, TABLE)} us against {us(cells, best)} of `{best}`, {gain}, "
                f"{share:.1%} slower, {noise} noise"
            )
        rows.append({**size, "text": text})
    return rows


def best_products(documents: Documents) -> Count:
    """Count the products, and those whose table is not slower by too much."""
    count = len(list(measured(documents)))
    return Count(count - len(slower_products(documents)), count)


def means(documents: Documents) -> list[Row]:
    """Return the geometric mean of the speed over max-autotune, by class."""
    rows = []
    for name, by_m in _speed_by_m(documents).items():
        speeds = [speed for speeds in by_m.values() for speed in speeds]
        rows.append({"class": name, "mean": geomean(speeds), "speeds": speeds})
    return rows


def mean_with_epilogue(documents: Documents) -> float | None:
    """Return the geometric mean over the classes with an epilogue; None where a class lacks."""
    rows = [row for row in means(documents) if row["class"] in WITH_EPILOGUE]
    has_all = len(rows) == len(WITH_EPILOGUE)
    return geomean([speed for row in rows for speed in row["speeds"]]) if has_all else None


def _speed_by_m(documents: Documents) -> dict[str, dict[int, list[float]]]:
    """Return the table's speed over max-autotune by class and M, where both were timed."""
    classes: dict[str, dict[int, list[float]]] = {}
    for size, cells in measured(documents):
        if TUNED in cells and TABLE in cells:
            speed = cells[TUNED].median_us / cells[TABLE].median_us
            classes.setdefault(size["model"], {}).setdefault(size["m"], []).append(speed)
    return classes


def products_chart(documents: Documents) -> Chart:
    """Return the chart of the speed-up over max-autotune by M, with a series for each class."""
    classes = _speed_by_m(documents)
    sizes = sorted({m for by_m in classes.values() for m in by_m})
    series = []
    for name, by_m in classes.items():
        values, low, high = (
            tuple(round((pick(by_m[m]) - 1) * 100, 2) if m in by_m else None for m in sizes)
            for pick in (geomean, min, max)
        )
        series.append(Series(name=name, values=values, low=low, high=high))
    origin = next(iter(documents.values()))["origin"]
    here = origin["runtime"]
    return Chart(
        title=f"Products of Llama-3-8B from a table, against {TUNED}",
        subtitle="bars and numbers: geometric mean over the shapes; lines: from the slowest to "
        f"the fastest of them; launch {origin['launch']}, {origin.get('l2', 'warm')} L2; "
        "higher is better",
        x_label="M",
        y_label="% faster",
        groups=tuple(map(str, sizes)),
        series=tuple(series),
        reference=(TUNED, 0.0),
        note=f"{here['device']['name']}, torch {here['torch']}, triton {here['triton']}, "
        f"warmup {origin['warmup']}, {origin['created'][:10]}",
    )


# -- warmup bench ------------------------------------------------------------------------------


def best_columns(documents: Documents) -> Count:
    """Count the products, and those whose table is not slower than the best, beyond noise."""
    verdicts = [shape["table_over_best"]["verdict"] for shape in each(documents, "shapes")]
    return Count(len(verdicts) - verdicts.count("slower"), len(verdicts))


def host_parts(documents: Documents) -> list[Row]:
    """Return for each column the microseconds of the host until a call is enqueued, and of what."""
    return [
        {"column": column, **parts}
        for summary in (document["summary"] for document in documents.values())
        for column, parts in summary["host_us"].items()
    ]


def against_h200(documents: Documents) -> float:
    """Return the table's times over those of the earlier report, geometric mean of the shapes."""
    (document,) = documents.values()
    changes = document["against"]["changes"]
    return geomean([change["ratio"] for change in changes if change["column"] == "table"])


def passes(documents: Documents) -> list[Row]:
    """Return the geometric means of the speed over eager by layer and pass, by backend."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for mean in each(documents, "speedup_over_eager"):
        layer = mean["layer"] or "all"
        row = rows.setdefault((layer, mean["pass"]), {**mean, "layer": layer})
        row[mean["backend"]] = mean
    return list(rows.values())


def dropped(documents: Documents) -> list[Row]:
    """Return which backends dropped out, of which cells, and why."""
    counts = Counter(
        (cell["backend"], cell["layer"], cell["reason"])
        for cell in each(documents, "cells")
        if cell["reason"]
    )
    rows = [
        {"what": f"`{backend}`, {layer}, {count} of its shapes and passes", "reason": reason}
        for (backend, layer, reason), count in counts.items()
    ]
    missing = {
        name: why for document in documents.values() for name, why in document["missing"].items()
    }
    return [*rows, *({"what": f"`{name}`", "reason": why} for name, why in missing.items())]
