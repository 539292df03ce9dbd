"""Write what searches for GEMM kernels came to, in short.

    python timings.py TABLE.json OUT.json NAME=TIMINGS.jsonl ...

The timings are what ``warmup build --timings`` wrote; they hold every candidate, which is too much
to keep. Machine, versions and flags are those of the table that the builds made. Of each product
stay its winner, the library's kernel, what the same rule picks by times of the product alone, the
fastest one alone, and all that were timed as they will run. Of two lines with one key the last
counts.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from warmup.core.method import Method
from warmup.core.rows import Family, KwargValue, Row, Winner
from warmup.core.samples import Samples
from warmup.core.trial import Outcome
from warmup.inductor.gemm.tile_limits import Tile, spills
from warmup.keys.gemm import GEMM
from warmup.keys.registry import kind_of
from warmup.measuring.selection import select_winner
from warmup.table.codec import digest_of
from warmup.table.store import read

NEAR = 0.10  # of the winner's time alone: what might have won
_FINALISTS = 8  # as in warmup/measuring/screening.py; the others were timed in three rounds only
_WARP = 32
_Timed = tuple[Winner, dict[str, Any]]
_WORDS: Mapping[str, KwargValue] = {"True": True, "False": False, "None": None}


def winner_of(text: str) -> Winner:
    """Return the choice that a line of timings spells."""
    uid, _, rest = text.rstrip(")").partition("(")
    found = re.findall(r"(\w+)=([^,]*)", rest)
    kwargs = tuple((name, int(v) if v.isdigit() else _WORDS.get(v, v)) for name, v in found)
    families = {"aten": Family.EXTERN, "triton": Family.TEMPLATE}
    return Winner(families.get(uid.partition("::")[0], Family.SUBGRAPH), uid, kwargs)


def sources_of(searched: Mapping[str, Any]) -> Iterator[str]:
    """Yield where each candidate came from, in the order in which they were offered."""
    yield from ["listed"] * searched["listed"]
    for source, count in searched["added"].items():
        yield from [source] * count


def problem_of(group: str, line: Mapping[str, Any], row: Row | None, method: Method) -> Any:
    """Return one product in short; *row* is the table's, None when it has none now."""
    sources = list(sources_of(line["searched"]))
    winners = [winner_of(one["choice"]) for one in line["candidates"]]
    entries = [_entry(*found) for found in zip(line["candidates"], winners, sources, strict=True)]
    timed = [
        (winner, entry)
        for winner, entry in zip(winners, entries, strict=True)
        if entry["time_us"] is not None
    ]
    library = next(winner for winner in winners if winner.family is Family.EXTERN)
    alone = select_winner([_outcome(*one) for one in _finalists(timed, library)], library, method)
    won = next(e for w, e in timed if w == winner_of(line["winner"]))
    near = [e for _, e in timed if e["time_us"] <= won["time_us"] * (1 + NEAR)]
    tiles = {winner: tile for winner in winners if (tile := Tile.of(dict(winner.kwargs)))}
    fitting = [e for w, e in timed if w in tiles and not e["spills"]]
    spilling_us = sorted(e["time_us"] for _, e in timed if e["spills"])
    found = {
        "fastest_tile": min(fitting, key=lambda e: e["time_us"], default=None),
        "spilling_us": spilling_us,
    }
    return {
        "group": group,
        "key": line["key"],
        "flags": None if row is None else list(row.evidence.flags),
        "searched": line["searched"],
        "candidates": len(entries),
        "timed": len(timed),
        "near": len(near),
        "spilling": sum(map(spills, tiles.values())),
        "near_spilling": sum(e["spills"] for e in near),
        "values_a_thread": max(tile.m * tile.n // (tile.warps * _WARP) for tile in tiles.values()),
        "winner": won,
        "library": next(e for w, e in timed if w == library),
        "alone": next(e for w, e in timed if alone is not None and w == alone.outcome.winner),
        "fastest_alone": min((e for _, e in timed), key=lambda e: e["time_us"]),
        "as_it_runs": [e for _, e in timed if e["fused_us"] is not None],
        **(found if spilling_us else {}),
    }


def _entry(candidate: Mapping[str, Any], winner: Winner, source: str) -> dict[str, Any]:
    tile = Tile.of(dict(winner.kwargs))
    return {
        "choice": winner.short,
        "source": source,
        "time_us": candidate["time_us"],
        "fused_us": candidate["fused_us"],
        "spills": tile is not None and spills(tile),
    }


def _finalists(timed: Sequence[_Timed], library: Winner) -> list[_Timed]:
    ranked = sorted(timed, key=lambda one: one[1]["time_us"])
    return [*ranked[:_FINALISTS], *(one for one in ranked[_FINALISTS:] if one[0] == library)]


def _outcome(winner: Winner, entry: Mapping[str, Any]) -> Outcome:
    return Outcome(winner=winner, samples=Samples((entry["time_us"],)))


def main(words: Sequence[str]) -> None:
    """Write the document."""
    table, out = read(Path(words[0])), Path(words[1])
    runtime, method = table.provenance.runtime, table.policy.timing
    problems = {}
    for word in words[2:]:
        group, _, path = word.partition("=")
        for line in map(json.loads, Path(path).read_text(encoding="utf-8").splitlines()):
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
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
