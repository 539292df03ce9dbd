"""Races one model of the zoo: ``python zoo_race.py REQUEST RESULT``, started by `zoo.py`.

Every variant starts once, and is timed in CUDA graphs, then launched one by one; on a CPU the
latter only. The result has the documents of `warmup compare` by launch, and what a review doubts in
the table.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from warmup.bench.cells import write_json
from warmup.bench.compare import CompareRequest, document_of_comparison, race
from warmup.core.rows import L2, Launch
from warmup.inductor.machine import resolve_device
from warmup.table.review import review, review_table
from warmup.table.store import read


def main(request: str, result: str) -> None:
    """Write the comparisons and the doubts to the file *result*."""
    asked: dict[str, Any] = json.loads(request)
    device = resolve_device(asked["device"])
    is_gpu = device.type != "cpu"
    launches = [Launch.CUDAGRAPH, Launch.EAGER] if is_gpu else [Launch.EAGER]
    l2 = L2.COLD if is_gpu else L2.WARM
    reports = race(CompareRequest(launches=launches, l2=l2, **asked))
    raced = {report.origin.launch.value: document_of_comparison(report) for report in reports}
    for launch, found in raced.items():
        write_json(found, Path(asked["out"]) / f"compare-{launch}.json")
    reviewed = review_table(read(Path(asked["table"])))
    doubts = {"table": [asdict(doubt) for doubt in review(reviewed)]}
    write_json({"launches": raced, "doubts": doubts}, Path(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
