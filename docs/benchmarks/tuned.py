"""Fields of the benchmark page about builds: searches, and candidates that misbehave."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Any

from template import Documents, Row, Values, each

from warmup.bench.charts.chart import Chart, Roof, Series
from warmup.keys.gemm import GEMM

_BAD = {
    "bad_zeros": "returns zeros",
    "bad_half": "writes half of its output",
    "bad_tile": "gets a 2 x 2 corner wrong",
    "bad_fault": "writes out of bounds",
    "bad_hang": "never ends",
    "bad_exit": "ends the process",
    "bad_shared_memory": "wants too much shared memory",
    "bad_memory": "wants too much memory",
    "bad_clock": "reports a tenth of its time",
}


def searched(documents: Documents) -> list[Row]:
    """Return every product that was searched for."""
    return [{**problem, **_details(problem)} for problem in each(documents, "problems")]


def missed(documents: Documents) -> list[Row]:
    """Return the products whose fastest candidate a narrower search does not try."""
    found = [one for one in each(documents, "by_problem") if one["regret"] > 1]
    return [{**one, "key": one["key"].partition(" | ")[0]} for one in found]


def _details(problem: Row) -> dict[str, Any]:
    alone, library, winner = (problem[name] for name in ("alone", "library", "winner"))
    sizes, flags = GEMM.ingredients(problem["key"]), problem["flags"]
    fastest = min(problem["as_it_runs"], key=lambda entry: entry["fused_us"], default=winner)
    details: dict[str, Any] = {
        "product": problem["key"].partition(" | ")[0],
        "place": f"{problem['group']} {sizes['n']} x {sizes['k']}, M={sizes['m']}",
        "alone_us": f"{alone['fused_us']:.2f}" if alone["fused_us"] else "not timed",
        "fastest": fastest,
        "added": _counted(problem["searched"]["added"]),
        "pruned": sum(problem["searched"]["pruned"].values()),
        "flag": "no row" if flags is None else ", ".join(flags) or "none",
    }
    if alone["fused_us"]:
        details["gain"] = alone["fused_us"] / winner["fused_us"]
    if library["fused_us"]:
        details["behind"] = library["fused_us"] / fastest["fused_us"] - 1
    if times := problem.get("spilling_us"):
        median_us, best_us = statistics.median(times), problem["fastest_tile"]["time_us"]
        details["over"] = {"fastest": times[0] / best_us, "median": median_us / best_us}
        details |= {"median": median_us, "spilling_tiles": len(times)}
    return details


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {source}" for source, count in counts.items())


def raced_kernels(documents: Documents) -> list[Row]:
    """Return every generated kernel that was raced: its times, and the ratio to the better mode."""
    rows: list[Row] = []
    kernels = (each for document in documents.values() for each in document["kernels"].items())
    for name, kernel in kernels:
        times = {way: one["us"] for way, one in kernel["variants"].items()}
        better = min(times["default"], times["max-autotune"])
        searched = "; ".join(row["searched"] for row in kernel["rows"])
        over = better / times["table"]
        rows.append({"kernel": name, **times, "over": over, "searched": searched})
    return rows


def others(documents: Documents) -> list[Row]:
    """Return the products that would have another winner by times of the product alone."""
    return [problem for problem in searched(documents) if problem["alone"] != problem["winner"]]


def classes(documents: Documents) -> list[Row]:
    """Return what the searches came to by class of products, and of all."""
    problems = searched(documents)
    groups: dict[str, list[Row]] = {}
    for problem in problems:
        groups.setdefault(problem["group"], []).append(problem)
    return [_class(name, group) for name, group in (*groups.items(), ("all", problems))]


def _class(name: str, problems: list[Row]) -> Row:
    winners = [problem["winner"] for problem in problems]
    sources = Counter(winner["source"] for winner in winners)
    del sources["listed"]
    other = [problem for problem in problems if problem["alone"] != problem["winner"]]
    sums = ("candidates", "spilling", "near", "near_spilling")
    return {
        "class": name,
        "products": len(problems),
        "library_won": sum(problem["winner"] == problem["library"] for problem in problems),
        "new": f"{sources.total()} ({_counted(sources)})" if sources else "0",
        "not_fastest": sum(each["winner"] != each["fastest_alone"] for each in problems),
        "others": len(other),
        "gains": Values(problem["gain"] for problem in other if "gain" in problem),
        **{field: sum(problem[field] for problem in problems) for field in sums},
        "spilling_winners": sum(winner["spills"] for winner in winners),
        "most": max(problem["values_a_thread"] for problem in problems),
    }


def rejected(documents: Documents) -> list[Row]:
    """Return what became of candidates that misbehave."""
    rows = []
    for problem in (problem for products in documents.values() for problem in products.values()):
        messages = {
            uid.rpartition("::")[2]: message for uid, message in problem["rejected"].items()
        }
        for bad, does in _BAD.items():
            reason, text = messages[bad]
            row = {"bad": bad, "does": does, "reason": reason, "winner": problem["winner"]}
            rows.append({**row, "text": text.replace("|", "/")[:110]})
    return rows


def misled(documents: Documents) -> list[str]:
    """Return the products to which candidates that misbehave were offered."""
    return [f"`{key}`" for products in documents.values() for key in products]


def decode_roofline(document: Mapping[str, Any]) -> Chart:
    """Return the rates of the products with few rows in bf16, under the roofline of the device."""
    products = [one for one in document["products"] if one["dtype"] == "bf16"]
    counted = [(one, 2 * one["m"] * one["n"] * one["k"]) for one in products]
    names = {"own_us": "best tile of warmup's templates", "library_us": "library"}
    return Chart(
        title="Products with 1 to 64 rows under the roofline, bf16",
        subtitle="Higher is better. Weights from memory (cold L2), CUDA graphs.",
        x_label="FLOPs per byte that has to be moved",
        y_label="arithmetic, TFLOP/s",
        groups=tuple(f"{one['n']} x {one['k']}, M={one['m']}" for one in products),
        series=tuple(
            Series(
                name=words,
                values=tuple(flops / one[name] / 1e6 for one, flops in counted),
            )
            for name, words in names.items()
        ),
        kind="points",
        roof=Roof(
            positions=tuple(flops / one["bytes"] for one, flops in counted),
            marks=tuple(f"{one['n']} x {one['k']}" for one in products),
            gbps=document["gbps"],
            tflops=None,
        ),
        note=f"{document['device']}, torch {document['runtime']['torch']}, "
        f"Triton {document['runtime']['triton']}, {document['created']:.10}",
    )
