"""The driver of a build on a Ray cluster whose workers are `fake_device_worker.py`.

Its argument is a JSON object: the ``address`` of the cluster, the ``devices``, the ``keys``, the
table ``out``, the ``case`` of the workers, and the seconds of the ``budget``. It prints a JSON
object for each event, and at the end the report. Nothing else is on stdout, as of `warmup build`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from warmup.core.rows import Tuned
from warmup.diagnostics.misses import MissedProblem
from warmup.tuning.cluster.build import runners_on
from warmup.tuning.cluster.connection import connected
from warmup.tuning.cluster.slots import alive_nodes, slots_of
from warmup.tuning.devices.build import build_with
from warmup.tuning.devices.host import Patience
from warmup.tuning.devices.messages import WorkerOrder
from warmup.tuning.report import Observer

FAKE = Path(__file__).resolve().with_name("fake_device_worker.py")
GIVEN: dict[str, Any] = json.loads(sys.argv[1])
EVENTS = sys.stdout  # a build on a cluster redirects it


def say(**event: Any) -> None:
    print(json.dumps(event), file=EVENTS, flush=True)


class Saying(Observer):
    def devices_ready(self, names: Any, control_us: Any) -> None:
        say(ready=list(names))

    def problem_finished(self, tuned: Tuned) -> None:
        say(finished=tuned.key)

    def problem_lost(self, key: str, device: str, reason: str, *, goes_on: bool) -> None:
        say(lost=key, device=device, reason=reason, goes_on=goes_on)


def main() -> None:
    order = WorkerOrder(device="", folder="", turn="warmup-test", parent=os.getpid())
    with connected(GIVEN["address"]) as ray:
        runners = runners_on(
            ray,
            slots_of(GIVEN["devices"], alive_nodes(ray.nodes())),
            order,
            Patience(start_s=60.0, silence_s=30.0, problem_s=60.0),
            command=[sys.executable, "-P", str(FAKE), json.dumps(GIVEN["case"])],
        )
        started = time.monotonic()
        report = build_with(
            runners,
            [MissedProblem(key, "gemm", "not_in_table", 1) for key in GIVEN["keys"]],
            out=Path(GIVEN["out"]),
            seconds=GIVEN.get("budget"),
            observer=Saying(),
        )
    say(
        rows=sorted(report.table.rows),
        not_tuned=dict(report.not_tuned),
        known=list(report.known),
        by_device={share.name: share.problems for share in report.devices},
        left_out={share.name: share.left_out for share in report.devices if share.left_out},
        has_gpu=bool(os.environ.get("CUDA_VISIBLE_DEVICES")),
        build_s=time.monotonic() - started,
        torch="torch" in sys.modules,
    )


main()
