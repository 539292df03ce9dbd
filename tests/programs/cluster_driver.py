"""The driver of a build on a Ray cluster whose tasks sleep instead of measuring.

Its argument is a JSON object: the ``address`` of the cluster, the table ``out``, a ``table`` with
a row for each problem, the ``seconds`` of a problem, ``gone_s``, after which the cluster is gone,
and the file ``log``, to which each task writes its process and the key that it begins. It prints
a line for each finished problem, and at the end the report.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest import mock

from warmup.core.rows import Tuned
from warmup.diagnostics.misses import MissedProblem
from warmup.table.codec import decode, encode
from warmup.tuning.ray_build import build_on_cluster
from warmup.tuning.report import Observer

GIVEN: dict[str, Any] = json.loads(sys.argv[1])
EVENTS = sys.stdout  # a build on a cluster redirects it


def sleep_share(request: str, given: dict[str, Any] = GIVEN) -> str:
    import os
    import time
    from dataclasses import replace
    from pathlib import Path

    import ray

    from warmup.tuning.devices.messages import FinishedProblem, to_json

    table = decode(given["table"], "the test")
    keys = [problem["key"] for problem in json.loads(json.loads(request)["misses"])["problems"]]
    for key in keys:
        with Path(given["log"]).open("a") as log:
            log.write(f"{os.getpid()} {key}\n")
        time.sleep(given["seconds"])
    rows = {key: table.rows[key] for key in keys}
    tuned = tuple(Tuned(key, row, ()) for key, row in rows.items())
    node = ray.get_runtime_context().get_node_id()
    finished = to_json(FinishedProblem(key="", tuned=tuned))
    answer = {"node": node, "name": node, "control_us": 1.0}
    return json.dumps({**answer, "table": encode(replace(table, rows=rows)), "finished": finished})


class Saying(Observer):
    def problem_finished(self, tuned: Tuned) -> None:
        print(json.dumps({"finished": tuned.key}), file=EVENTS, flush=True)


def main() -> None:
    keys = decode(GIVEN["table"], "the test").rows
    with mock.patch("warmup.tuning.ray_build._GONE_S", GIVEN["gone_s"]):
        report = build_on_cluster(
            [MissedProblem(key, "gemm", "not_in_table", 1) for key in keys],
            cluster=GIVEN["address"],
            devices="cpu",
            out=GIVEN["out"],
            observer=Saying(),
            task=sleep_share,
        )
    said = {
        "rows": sorted(report.table.rows),
        "known": sorted(report.known),
        "not_tuned": dict(report.not_tuned),
        "by_device": {share.name: share.problems for share in report.devices},
    }
    print(json.dumps({"report": said}), file=EVENTS, flush=True)


if __name__ == "__main__":
    main()
