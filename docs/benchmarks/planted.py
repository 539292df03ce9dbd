"""How many planted drifts `warmup check --verify` names, and how many rows it names wrongly.

    python docs/benchmarks/planted.py TABLE... --limit 120 --out planted.json

Every second row that has a candidate at least --behind times as slow gets it as its winner, as if
that had been the fastest at the build; --behind has to be above the band of a near tie. All rows
are then timed again, the slowest first, until the limit.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from driver import say, write

from warmup.core.rows import Row, Winner, ranked
from warmup.table.schema import Table
from warmup.table.store import read
from warmup.tuning.verify import choice_named, verify

TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")  # as rankings spell them


def swapped(table: Table, behind: float) -> Iterator[tuple[str, Row]]:
    """Yield every second row of *table* that has a slower candidate, with that as its winner."""
    able = [
        (key, row, wrong)
        for key, row in sorted(table.rows.items(), key=lambda each: -each[1].evidence.time_us)
        if (wrong := slower(row, behind)) is not None
    ]
    for key, row, wrong in able[::2]:
        yield key, Row(wrong, replace(row.evidence, runner_up=str(row.winner)))


def slower(row: Row, behind: float) -> Winner | None:
    """Return the fastest candidate of *row* at least *behind* times as slow, if it is spelled."""
    evidence, own = row.evidence, dict(row.winner.kwargs)
    if (evidence.runner_up_us or 0.0) >= behind * evidence.time_us:
        return choice_named(str(evidence.runner_up))
    for time_us, name in sorted(ranked(evidence.ranking)):
        uid, _, tile = name.partition(" ")
        sizes = dict(zip(TILE, map(int, re.findall(r"\d+", tile)), strict=False))
        alike = uid == row.winner.uid and sizes.get("BLOCK_K") == own.get("BLOCK_K")
        if alike and time_us >= behind * evidence.time_us:
            return replace(row.winner, kwargs=tuple({**own, **sizes}.items()))
    return None


def main() -> None:
    """Plant, time and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--behind", type=float, default=1.1)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for each table")
    parser.add_argument("--out", type=Path, default=Path("planted.json"))
    asked, results = parser.parse_args(), list[dict[str, object]]()
    for path in asked.tables:
        table = read(path)
        planted = dict(swapped(table, asked.behind))
        changed = replace(table, rows={**table.rows, **planted})
        done = verify(changed, "100%", limit_s=asked.limit)
        timed, drifted = {row.key for row in done.timed}, {row.key for row in done.drifted}
        results.append(
            {
                "table": path.name,
                "seconds": round(done.seconds, 1),
                "timed": len(timed),
                "planted": len(timed & planted.keys()),
                "named": len(drifted & planted.keys()),
                "missed": sorted((timed & planted.keys()) - drifted),
                "false_alarms": sorted(drifted - planted.keys()),
                "skipped": {reason: len(keys) for reason, keys in done.skipped.items()},
                "left": done.left,
                "pace": done.pace,
                "disturbed": done.disturbed,
            }
        )
        say(results[-1])
        write(asked.out, {"torch": torch.__version__, "behind": asked.behind, "tables": results})


if __name__ == "__main__":
    main()
