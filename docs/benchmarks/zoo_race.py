"""Races one model of the zoo: ``python zoo_race.py REQUEST RESULT``, started by `zoo.py`.

Every variant starts once, and is timed in CUDA graphs, then launched one by one; on a CPU the
latter only. The result has the documents of `warmup compare` by launch, and what `warmup review`
doubts in them and in the table.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from warmup.bench.cells import write_json
from warmup.bench.compare.compare import compare_launches
from warmup.cli.compare_render import document
from warmup.core.method import L2, Launch
from warmup.diagnostics.review.documents import review_file
from warmup.diagnostics.review.rules import review
from warmup.inductor.machine import resolve_device


def doubts_in(path: Path) -> list[dict[str, Any]]:
    """Return what a review doubts in the file *path*."""
    return [asdict(doubt) for doubt in review(review_file(path))]


def main(request: str, result: str) -> None:
    """Write the comparisons and the doubts to the file *result*."""
    asked: dict[str, Any] = json.loads(request)
    folder, device = Path(asked["out"]), resolve_device(asked["device"])
    is_gpu = device.type != "cpu"
    launches = [Launch.CUDAGRAPH, Launch.EAGER] if is_gpu else [Launch.EAGER]
    reports = compare_launches(
        asked.pop("model"),
        launches=launches,
        l2=L2.COLD if is_gpu else L2.WARM,
        **asked,
    )
    raced = {report.origin.launch.value: document(report) for report in reports}
    doubts = {"table": doubts_in(Path(asked["table"]))}
    for launch, found in raced.items():
        doubts[launch] = doubts_in(write_json(found, folder / f"compare-{launch}.json"))
    write_json({"launches": raced, "doubts": doubts}, Path(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
