"""Compare two builds of one table on one device, row by row.

    python two_builds.py A.json A-timings.jsonl B.json B-timings.jsonl OUT.json

The timings are what ``warmup build --timings`` wrote. Where two rows have different winners, each
winner's time in the other build is looked up: *apart* is the smaller of the two shares by which a
winner is slower in the other build than the winner there. The rows agree within the band when that
is at most the band that one of them recorded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from warmup.keys.order import natural_order
from warmup.keys.registry import kind_of
from warmup.table import Table
from warmup.table.codec import digest_of
from warmup.table.store import read

Times = dict[str, dict[str, float | None]]


def read_times(path: Path) -> Times:
    """Return the time of each candidate, by key and choice."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {
        line["key"]: {one["choice"]: one["time_us"] for one in line["candidates"]} for line in lines
    }


def compare_row(key: str, a: Table, b: Table, in_a: Times, in_b: Times) -> dict[str, Any]:
    """Return what the two builds say about *key*."""
    left, right = a.rows[key], b.rows[key]
    found: dict[str, Any] = {
        "key": key,
        "kind": kind_of(key).name,
        "same": left.winner == right.winner,
        "winners": [str(left.winner), str(right.winner)],
        "times_us": [left.evidence.time_us, right.evidence.time_us],
        "bands": [left.evidence.band, right.evidence.band],
        "spreads": [left.evidence.spread, right.evidence.spread],
        "flags": [list(left.evidence.flags), list(right.evidence.flags)],
    }
    if not found["same"]:
        shares = []
        for times, row, other in ((in_a[key], left, right), (in_b[key], right, left)):
            there = times.get(str(other.winner))
            if there is not None:
                shares.append(there / row.evidence.time_us - 1)
        found["apart"] = round(min(shares), 4) if shares else None
        band = max(filter(None, found["bands"]))
        found["within_band"] = bool(shares) and min(shares) <= band
    return found


def main() -> None:
    """Write the comparison and print a summary."""
    paths = [Path(word) for word in sys.argv[1:]]
    a, b = read(paths[0]), read(paths[2])
    in_a, in_b = read_times(paths[1]), read_times(paths[3])
    keys = sorted(a.rows.keys() & b.rows.keys(), key=natural_order)
    rows = [compare_row(key, a, b, in_a, in_b) for key in keys]
    differing = [row for row in rows if not row["same"]]
    drift = [abs(row["times_us"][1] / row["times_us"][0] - 1) for row in rows if row["same"]]
    document = {
        "digests": [digest_of(a), digest_of(b)],
        "created": [a.provenance.created, b.provenance.created],
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
    paths[4].write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    names = ("rows", "same_winner", "within_band", "beyond_band", "only_in_one")
    sys.stdout.write(json.dumps({name: document[name] for name in names}) + "\n")
    for row in differing:
        short = [winner[:60] for winner in row["winners"]]
        sys.stdout.write(f"{row['apart']} {row['bands']} {row['key'][:90]}\n  {short}\n")


if __name__ == "__main__":
    main()
