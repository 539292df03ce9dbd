"""A worker of a device that measures nothing: it answers with stored rows, or fails as it is told.

It speaks the protocol of `warmup.tuning.device_worker`. Its first argument is a JSON object: the
text of a table with the rows that it answers with, and by key how it fails.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import msgspec

from warmup.core.device import MachineState
from warmup.core.phases import BuildStage
from warmup.core.processes import end_with_parent
from warmup.core.trial import Tuned
from warmup.table.codec import decode
from warmup.tuning.report import ProblemResults

CASE: dict[str, Any] = json.loads(sys.argv[1])


def main() -> None:
    """Start, and answer each task, until a fault ends this process."""
    end_with_parent()
    table = decode(CASE["table"], "case")
    with os.fdopen(int(sys.argv[-1]), "w") as answers:

        def send(**message: Any) -> None:
            answers.write(json.dumps(message) + "\n")
            answers.flush()

        sys.stdin.readline()  # the order
        if "gone" in CASE:
            send(gone=CASE["gone"])
            return
        origin, control_us = table.provenance, CASE["control_us"]
        started = {"runtime": origin.runtime, "policy": table.policy, "control_us": control_us}
        send(ready=msgspec.to_builtins(started))
        for line in sys.stdin:
            key = json.loads(line)["key"]
            fault = CASE["faults"].get(key)
            if fault == "memory":
                send(lost="ran out of memory: CUDA out of memory")
                return
            fail(fault, send)
            finished = ProblemResults(
                timings=(Tuned(key, table.rows[key], ()),),
                stages={BuildStage.COMPILING: 1.5},
                machine=MachineState(measured=1, cpus=2.0),
            )
            send(finished=msgspec.to_builtins(finished))


def fail(fault: str | None, send: Any) -> None:
    if fault == "kill":
        sys.stderr.write("about to die\n")
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        time.sleep(600)
    if fault == "damage":
        send(finished={"timings": 1})
    while fault == "slow":
        send(beat=True)
        time.sleep(0.05)


main()
