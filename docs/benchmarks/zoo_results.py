"""Fields of the benchmark page from the results of `zoo.py`.

A ratio is how many times faster one variant is than another, by the medians as printed; it is
missed where it is below `LEAST`. The goals are over CUDA graphs, since what the host costs is the
same for all compiled variants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compared import PADDED, TABLE, TUNED, Cells, faster, measured, us
from template import Documents, Row

from warmup.core.samples import geomean

DEFAULT = "default"
LEAST = 0.99
BY_DEFAULT = "cudagraph"


def raced(documents: Documents, launch: str = BY_DEFAULT) -> Iterator[tuple[Row, Cells]]:
    """Yield each bucket that was timed by *launch*, with its model and device, and its cells."""
    for document in documents.values():
        launches = document.get("race", {}).get("launches", {})
        if launch in launches:
            for bucket, cells in measured({document["name"]: launches[launch]}):
                sizes = launches[launch]["buckets"][0]["bucket"]
                place = {
                    "name": document["name"],
                    "device": bucket["runtime"]["device"]["name"],
                    "torch": bucket["runtime"]["torch"],
                    "sizes": ", ".join(f"{dim}={bucket[dim]}" for dim in sizes),
                }
                yield place, cells


def over(cells: Cells, name: str, base: str) -> float | None:
    """Return how many times faster *name* is than *base*, to three digits behind the point."""
    if name not in cells or base not in cells:
        return None
    return round(cells[base].median_us / cells[name].median_us, 3)


def zoo_times(documents: Documents) -> list[Row]:
    """Return a row for each bucket: the times in CUDA graphs, and the table's ratios."""
    rows = []
    for place, cells in raced(documents):
        times = {name: us(cells, name) for name in ("eager", DEFAULT, TUNED, TABLE)}
        times[PADDED] = us(cells, PADDED) if PADDED in cells else ""
        rows.append(
            {
                **place,
                **times,
                "over_default": str(faster(cells, TABLE, DEFAULT) or ""),
                "over_tuned": str(faster(cells, TABLE, TUNED) or ""),
                "padded_over_tuned": str(faster(cells, PADDED, TUNED) or ""),
            }
        )
    return rows


def zoo_launched(documents: Documents) -> list[Row]:
    """Return a row for each bucket: what a call costs with the host, launched one by one."""
    rows = []
    for place, cells in raced(documents, "eager"):
        walls = {name: f"{cell.wall_us:g}" for name, cell in cells.items()}
        rows.append(
            {**dict.fromkeys(("eager", DEFAULT, TUNED, TABLE, PADDED), ""), **place, **walls}
        )
    return rows


def zoo_means(documents: Documents) -> list[Row]:
    """Return the geometric means of the ratios by device, variant and what it replaces."""
    ratios: dict[tuple[str, str, str, str], list[float]] = {}
    for place, cells in raced(documents):
        for name in (TABLE, PADDED):
            for base in (DEFAULT, TUNED):
                if ratio := over(cells, name, base):
                    key = (place["device"], place["torch"], name, base)
                    ratios.setdefault(key, []).append(ratio)
    return [
        {
            **dict(zip(("device", "torch", "variant", "base"), key, strict=True)),
            "count": len(values),
            "mean": geomean(values),
            "lowest": min(values),
            "missed": sum(value < LEAST for value in values),
        }
        for key, values in ratios.items()
    ]


def zoo_goals(documents: Documents) -> dict[str, float]:
    """Return the numbers that goals are set for, over all devices: of the table as it is."""
    goals = {}
    for base in (DEFAULT, TUNED):
        ratios = [over(cells, TABLE, base) for _, cells in raced(documents)]
        if values := [ratio for ratio in ratios if ratio]:
            goals |= {f"over {base}": geomean(values), f"least over {base}": min(values)}
    builds = [row["over_tuned"] for row in zoo_starts(documents) if row["over_tuned"]]
    return goals | ({"build over start": geomean(builds)} if builds else {})


def zoo_misses(documents: Documents) -> list[Row]:
    """Return a line on each bucket where the table is too slow, the worst first."""
    found = []
    for place, cells in raced(documents):
        for base in (DEFAULT, TUNED):
            ratio = over(cells, TABLE, base)
            if ratio is not None and ratio < LEAST:
                times = f"{us(cells, TABLE)} us against {us(cells, base)} of `{base}`"
                words = f"{place['device']}, `{place['name']}`, {place['sizes']}: {times}"
                found.append((ratio, f"{words}, {faster(cells, TABLE, base)}"))
    return [{"line": line} for _, line in sorted(found)] or [{"line": "no bucket"}]


def zoo_starts(documents: Documents) -> list[Row]:
    """Return a row for each model: its build and its starts, in seconds, and what was measured."""
    rows = []
    for document in documents.values():
        launches = document.get("race", {}).get("launches", {})
        if not launches:
            continue
        build, raced_first = document["builds"][TABLE], next(iter(launches.values()))
        starts = {each["name"]: each["start"] for each in raced_first["variants"]}
        seconds = {
            name: start["process_seconds"] if start else None for name, start in starts.items()
        }
        tuned, table = starts.get(TUNED), starts.get(TABLE)
        rows.append(
            {
                "name": document["name"],
                "device": raced_first["origin"]["runtime"]["device"]["name"],
                "build": build["seconds"],
                "rows": build["rows"],
                "seconds": seconds,
                "over_tuned": build["seconds"] / tuned["process_seconds"] if tuned else None,
                "benchmarks": tuned["benchmarks"] if tuned else None,
                "hits": table["hits"] if table else None,
                "misses": table["misses"] if table else None,
                "measured": table["benchmarks"] if table else None,
                "agreement": _agreement(document.get("agreement")),
                "doubts": _doubts(document["race"]["doubts"]),
            }
        )
    return rows


def _agreement(found: Row | None) -> str:
    """Return how a second build agreed; empty where none was made."""
    if found is None:
        return ""
    same, rows, near = found["same_winner"], found["rows"], found["within_band"]
    return f"{same} of {rows} the same, {near} within the band, {len(found['beyond_band'])} beyond"


def _doubts(doubts: dict[str, list[dict[str, Any]]]) -> str:
    """Return how many numbers a review doubts, by where: ``table: 1 wrong, 2 look``."""
    texts = []
    for where, found in doubts.items():
        levels = [each["level"] for each in found]
        counts = ", ".join(f"{levels.count(level)} {level}" for level in dict.fromkeys(levels))
        texts += [f"{where}: {counts}"] if found else []
    return "; ".join(texts) or "none"
