"""A worker of a device that measures nothing: it answers with stored rows, or fails as it is told.

It speaks the protocol of `warmup.tuning.devices.worker`. Its first argument is a JSON object: the
text of a table with the rows that it answers with, and by key how it fails. ``seconds`` is the time
that each problem takes, and ``log`` a file to which each problem that is begun adds a line: the
process ID and the key.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from warmup.core.child_process import end_with_parent
from warmup.table.codec import decode, encode

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
        empty = encode(replace(table, rows={}))
        ready = {"table": empty, "control_us": CASE["control_us"], "complaints": []}
        send(ready={**ready, "can_search": False})
        for line in sys.stdin:
            key = json.loads(line)["key"]
            fault = CASE["faults"].get(key)
            if fault == "memory":
                send(lost="ran out of memory: CUDA out of memory")
                return
            if "log" in CASE:
                with Path(CASE["log"]).open("a") as log:
                    log.write(f"{os.getpid()} {key}\n")
            fail(fault, send)
            time.sleep(CASE.get("seconds", 0.0))
            send(finished=finished(key, encode(replace(table, rows={key: table.rows[key]}))))


def fail(fault: str | None, send: Any) -> None:
    """Fail as *fault* says, if it says anything."""
    if fault == "kill":
        sys.stderr.write("about to die\n")
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exit":
        sys.exit(7)
    if fault == "hang":
        time.sleep(600)
    while fault == "slow":
        send(beat=True)
        time.sleep(0.05)


def finished(key: str, table: str) -> dict[str, Any]:
    """Return the message of a problem that was tuned, with one row in the text *table*."""
    return {
        "key": key,
        "table": table,
        "tuned": [{"key": key, "timings": [], "searched": None}],
        "result": None,
        "not_rebuilt": None,
        "not_tuned": {},
        "not_fused": {},
        "distrusted": {},
        "stages": {"compiling": 1.5},
        "machine": {
            "measured": 1,
            "disturbed": 0,
            "cpus": 2.0,
            "worst_share": None,
            "waited_s": 0.0,
            "complaints": [],
        },
    }


main()
