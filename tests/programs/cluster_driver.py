"""The driver of a build on a Ray cluster whose tasks sleep instead of measuring.

Its argument is a JSON object: the ``address`` of the cluster, the table ``out``, a ``table`` with
a row for each problem, the ``shard`` to tune, or null, the ``seconds`` of a problem, ``gone_s``,
after which the cluster is gone, and the file ``log``, to which each task writes its process and the
key that it begins. It prints a line for each finished problem, and at the end the report.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from warmup.core.trial import Tuned
from warmup.table.codec import decode
from warmup.tuning.build import BuildRequest, build
from warmup.tuning.problems import ProblemsSource, as_problems
from warmup.tuning.ray_build import Cluster
from warmup.tuning.report import Observer

GIVEN: dict[str, Any] = json.loads(sys.argv[1])
EVENTS = sys.stdout  # a build on a cluster redirects it


def sleep_share(request: dict[str, Any], given: dict[str, Any] = GIVEN) -> dict[str, Any]:
    import os
    import time

    import ray

    from warmup.tuning.devices import ReadyWorker, to_message
    from warmup.tuning.report import ProblemResults

    table = decode(given["table"], "the test")
    keys = request["keys"]
    for key in keys:
        with Path(given["log"]).open("a") as log:
            log.write(f"{os.getpid()} {key}\n")
        time.sleep(given["seconds"])
    node = ray.get_runtime_context().get_node_id()
    ready = ReadyWorker(runtime=table.provenance.runtime, policy=table.policy, control_us=1.0)
    finished = ProblemResults(timings=tuple(Tuned(key, table.rows[key], ()) for key in keys))
    answer = {"node": node, "name": node}
    return {**answer, "ready": to_message(ready), "finished": to_message(finished)}


class Saying(Observer):
    def problem_finished(self, tuned: Tuned) -> None:
        print(json.dumps({"finished": tuned.key}), file=EVENTS, flush=True)


def main() -> None:
    keys = decode(GIVEN["table"], "the test").rows
    with mock.patch("warmup.tuning.ray_build._GONE_S", GIVEN["gone_s"]):
        source = ProblemsSource(as_problems(keys), GIVEN["shard"])
        runner = Cluster(address=GIVEN["address"], devices="cpu", task=sleep_share)
        request = BuildRequest(source=source, runner=runner, out=Path(GIVEN["out"]))
        report = build(request, Saying())
    said = {
        "rows": sorted(report.table.rows),
        "known": sorted(report.known),
        "not_tuned": dict(report.not_tuned),
        "by_device": {share.name: share.problems for share in report.devices},
    }
    print(json.dumps({"report": said}), file=EVENTS, flush=True)


if __name__ == "__main__":
    main()
