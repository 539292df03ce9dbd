"""Keeps of the timings of builds what the benchmark page needs.

    python timings.py searches TABLE.json OUT.json NAME=TIMINGS.jsonl ...
    python timings.py twice OUT.json A.json A-timings.jsonl B.json B-timings.jsonl

The timings are what ``warmup build --timings`` wrote; they hold every candidate, which is too much
to keep.

`searches`: machine, versions and flags are those of the table that the builds made. Of each product
stay its winner, the library's kernel, what the same rule picks by times of the product alone, the
fastest alone, and all that were timed as they will run. Of two lines with the same key the last
counts.

`twice` compares two builds of a table on a device, row by row. Where two rows have different
winners, each winner's time in the other build is looked up: *apart* is the smaller of the two
shares by which a winner is slower in the other build than the winner there. The rows agree within
the band when that is at most the band that either of them recorded.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from driver import say, write

from warmup.core.method import Method
from warmup.core.rows import Family, KwargValue, Row, Winner
from warmup.core.samples import Samples
from warmup.core.trial import Outcome
from warmup.inductor.gemm.tile_limits import Tile, spills
from warmup.keys.gemm import GEMM
from warmup.keys.order import natural_order
from warmup.keys.registry import kind_of
from warmup.measuring.selection import select_winner
from warmup.table.codec import digest_of
from warmup.table.store import read

NEAR = 0.10  # of the winner's time alone: what might have won
_FINALISTS = 8  # as in warmup/measuring/screening.py; the others were timed in three rounds only
_WARP = 32
_WORDS: Mapping[str, KwargValue] = {"True": True, "False": False, "None": None}

Line = Mapping[str, Any]


def lines_of(path: str) -> Iterator[Line]:
    """Yield the problems in a file of timings."""
    return map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())


def winner_of(text: str) -> Winner:
    """Return the choice that a line of timings spells."""
    uid, _, rest = text.rstrip(")").partition("(")
    pairs = re.findall(r"(\w+)=([^,]*)", rest)
    kwargs = tuple((name, int(v) if v.isdigit() else _WORDS.get(v, v)) for name, v in pairs)
    families = {"aten": Family.EXTERN, "triton": Family.TEMPLATE}
    return Winner(families.get(uid.partition("::")[0], Family.SUBGRAPH), uid, kwargs)


def problem_of(group: str, line: Line, row: Row | None, method: Method) -> dict[str, Any]:
    """Return one product in short; *row* is the table's, None when it has none now."""
    searched, candidates = line["searched"], line["candidates"]
    sources = ["listed"] * searched["listed"]  # in the order in which candidates were offered
    for source, count in searched["added"].items():
        sources += [source] * count
    entries: dict[Winner, dict[str, Any]] = {}
    tiles: dict[Winner, Tile] = {}
    for candidate, source in zip(candidates, sources, strict=True):
        winner = winner_of(candidate["choice"])
        if tile := Tile.of(dict(winner.kwargs)):
            tiles[winner] = tile
        entries[winner] = {
            "choice": winner.short,
            "source": source,
            "time_us": candidate["time_us"],
            "fused_us": candidate["fused_us"],
            "spills": tile is not None and spills(tile),
        }
    timed = {winner: entry for winner, entry in entries.items() if entry["time_us"] is not None}
    ranked = sorted(timed, key=lambda winner: timed[winner]["time_us"])
    library = next(winner for winner in entries if winner.family is Family.EXTERN)
    finalists = [
        *ranked[:_FINALISTS],
        *(winner for winner in ranked[_FINALISTS:] if winner == library),
    ]
    outcomes = [Outcome(winner=w, samples=Samples((timed[w]["time_us"],))) for w in finalists]
    alone = select_winner(outcomes, library, method)
    assert alone is not None
    won = timed[winner_of(line["winner"])]
    near = [each for each in timed.values() if each["time_us"] <= won["time_us"] * (1 + NEAR)]
    problem = {
        "group": group,
        "key": line["key"],
        "flags": None if row is None else list(row.evidence.flags),
        "searched": searched,
        "candidates": len(candidates),
        "timed": len(timed),
        "near": len(near),
        "spilling": sum(map(spills, tiles.values())),
        "near_spilling": sum(entry["spills"] for entry in near),
        "values_a_thread": max(tile.m * tile.n // (tile.warps * _WARP) for tile in tiles.values()),
        "winner": won,
        "library": timed[library],
        "alone": timed[alone.outcome.winner],
        "fastest_alone": timed[ranked[0]],
        "as_it_runs": [entry for entry in timed.values() if entry["fused_us"] is not None],
    }
    fastest_first = [(winner, timed[winner]) for winner in ranked]
    if spilling_us := [entry["time_us"] for _, entry in fastest_first if entry["spills"]]:
        fitting = (e for winner, e in fastest_first if winner in tiles and not e["spills"])
        problem |= {"fastest_tile": next(fitting, None), "spilling_us": spilling_us}
    return problem


def searches(table_path: str, out: str, *words: str) -> None:
    """Write what searches for GEMM kernels came to, in short."""
    table = read(Path(table_path))
    runtime, method = table.provenance.runtime, table.policy.timing
    problems = {}
    for group, _, path in (word.partition("=") for word in words):
        for line in lines_of(path):
            key = line["key"]
            if kind_of(key) is GEMM:
                problems[group, key] = problem_of(group, line, table.rows.get(key), method)
    document = {
        "device": runtime.device.name,
        "torch": runtime.torch,
        "triton": runtime.triton,
        "created": table.provenance.created,
        "digest": digest_of(table),
        "launch": method.launch,
        "l2": method.l2,
        "near_tie": method.near_tie,
        "near_share": NEAR,
        "problems": list(problems.values()),
    }
    write(Path(out), document)


def compare_row(
    key: str, rows: Sequence[Row], times: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what two builds say about *key*; *times* are those of its candidates, by choice."""
    winners, evidence = [str(row.winner) for row in rows], [row.evidence for row in rows]
    compared: dict[str, Any] = {
        "key": key,
        "kind": kind_of(key).name,
        "same": rows[0].winner == rows[1].winner,
        "winners": winners,
        "times_us": [each.time_us for each in evidence],
        "bands": [each.band for each in evidence],
        "spreads": [each.spread for each in evidence],
        "flags": [list(each.flags) for each in evidence],
    }
    if not compared["same"]:
        there = zip(times, reversed(winners), evidence, strict=True)
        shares = [by[other] / own.time_us - 1 for by, other, own in there if by.get(other)]
        compared["apart"] = round(min(shares), 4) if shares else None
        band = max(filter(None, compared["bands"]))
        compared["within_band"] = bool(shares) and min(shares) <= band
    return compared


def twice(out: str, *paths: str) -> None:
    """Write how two builds agree, and print a summary."""
    a, b = both = [read(Path(path)) for path in paths[::2]]
    times = [
        {
            line["key"]: {each["choice"]: each["time_us"] for each in line["candidates"]}
            for line in lines
        }
        for lines in map(lines_of, paths[1::2])
    ]
    keys = sorted(a.rows.keys() & b.rows.keys(), key=natural_order)
    rows = [
        compare_row(key, [table.rows[key] for table in both], [by.get(key, {}) for by in times])
        for key in keys
    ]
    differing = [row for row in rows if not row["same"]]
    drift = [abs(row["times_us"][1] / row["times_us"][0] - 1) for row in rows if row["same"]]
    document = {
        "digests": [digest_of(table) for table in both],
        "created": [table.provenance.created for table in both],
        "device": a.provenance.runtime.device.name,
        "torch": a.provenance.runtime.torch,
        "only_in_one": sorted(a.rows.keys() ^ b.rows.keys()),
        "rows": len(rows),
        "same_winner": len(rows) - len(differing),
        "within_band": sum(row["within_band"] for row in differing),
        "beyond_band": [row["key"] for row in differing if not row["within_band"]],
        "largest_drift_of_equal_winners": round(max(drift, default=0.0), 4),
        "differing": differing,
        "all": [
            {name: row[name] for name in ("key", "same", "times_us", "spreads")} for row in rows
        ],
    }
    write(Path(out), document)
    names = ("rows", "same_winner", "within_band", "beyond_band", "only_in_one")
    say(json.dumps({name: document[name] for name in names}))


if __name__ == "__main__":
    {"searches": searches, "twice": twice}[sys.argv[1]](*sys.argv[2:])
