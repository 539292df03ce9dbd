"""Fields of the benchmark page about builds: searches, and candidates that misbehave."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Any

from template import Documents, Row, Values, each

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
    rows = []
    for one in each(documents, "problems"):
        sizes, alone, library = GEMM.ingredients(one["key"]), one["alone"], one["library"]
        fastest = min(one["as_it_runs"], key=lambda e: e["fused_us"], default=one["winner"])
        found: dict[str, Any] = {
            "product": one["key"].partition(" | ")[0],
            "place": f"{one['group']} {sizes['n']} x {sizes['k']}, M={sizes['m']}",
            "alone_us": f"{alone['fused_us']:.2f}" if alone["fused_us"] else "not timed",
            "fastest": fastest,
            "added": _counted(one["searched"]["added"]),
            "pruned": sum(one["searched"]["pruned"].values()),
            "flag": "no row" if one["flags"] is None else ", ".join(one["flags"]) or "none",
        }
        if alone["fused_us"]:
            found["gain"] = alone["fused_us"] / one["winner"]["fused_us"]
        if library["fused_us"]:
            found["behind"] = library["fused_us"] / fastest["fused_us"] - 1
        if times := one.get("spilling_us"):
            found["median"], best_us = statistics.median(times), one["fastest_tile"]["time_us"]
            found["over"] = {"fastest": times[0] / best_us, "median": found["median"] / best_us}
            found["spilling_tiles"] = len(times)
        rows.append({**one, **found})
    return rows


def others(documents: Documents) -> list[Row]:
    """Return the products that would have another winner by times of the product alone."""
    return [one for one in searched(documents) if one["alone"] != one["winner"]]


def classes(documents: Documents) -> list[Row]:
    """Return what the searches came to by class of products, and of all."""
    every = searched(documents)
    groups = {one["group"]: [p for p in every if p["group"] == one["group"]] for one in every}
    return [_class(name, problems) for name, problems in (*groups.items(), ("all", every))]


def _class(name: str, problems: list[Row]) -> Row:
    sources = Counter(one["winner"]["source"] for one in problems)
    del sources["listed"]
    others = [one for one in problems if one["alone"] != one["winner"]]
    names = ("candidates", "spilling", "near", "near_spilling")
    return {
        "class": name,
        "products": len(problems),
        "library_won": sum(one["winner"] == one["library"] for one in problems),
        "new": f"{sources.total()} ({_counted(sources)})" if sources else "0",
        "not_fastest": sum(one["winner"] != one["fastest_alone"] for one in problems),
        "others": len(others),
        "gains": Values(one["gain"] for one in others if "gain" in one),
        **{name: sum(one[name] for one in problems) for name in names},
        "spilling_winners": sum(one["winner"]["spills"] for one in problems),
        "most": max(one["values_a_thread"] for one in problems),
    }


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {source}" for source, count in counts.items())


def rejected(documents: Documents) -> list[Row]:
    """Return what became of candidates that misbehave."""
    rows = []
    for problem in (one for document in documents.values() for one in document.values()):
        messages = {uid.rpartition("::")[2]: two for uid, two in problem["rejected"].items()}
        for bad, does in _BAD.items():
            reason, text = messages[bad]
            row = {"bad": bad, "does": does, "reason": reason, "winner": problem["winner"]}
            rows.append({**row, "text": text.replace("|", "/")[:110]})
    return rows


def misled(documents: Documents) -> list[str]:
    """Return the products to which candidates that misbehave were offered."""
    return [f"`{key}`" for document in documents.values() for key in document]
