"""A child program of the measurements that measures nothing: it speaks their protocol and dies.

``fake_measurer.py MODE FD``: MODE is what comes of the first candidate that is not to be skipped;
``dies_unless=PATH`` dies once, and makes the file PATH first, and ``ahead=dies`` or ``ahead=hangs``
misbehaves where it compiles a candidate named bad ahead. No torch, so that it starts at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from warmup.core.processes import end_with_parent

GOOD = {"samples": {"times_us": [2.0, 1.0, 3.0]}, "error": 0.5, "clock_mhz": 1500}


def serve(mode: str, descriptor: int) -> None:
    with os.fdopen(descriptor, "w", buffering=1) as answers:

        def send(message: dict[str, Any]) -> None:
            answers.write(json.dumps(message) + "\n")

        send({"ready": True})
        trials: dict[int, Any] = {}
        for line in sys.stdin:
            request = json.loads(line)
            if "prepare" in request:
                of, trials[request["prepare"]] = request["prepare"], request["trial"]
                refused = [one["winner"] for one in request["rejected"]]
                for number, one in enumerate(request["trial"]["candidates"]):
                    send({"of": of, "at": number, "stage": "compile"})
                    if "bad" in one["winner"]["uid"] and one["winner"] not in refused:
                        act(mode.removeprefix("ahead="))
                send({"of": of, "at": None, "stage": "operands"})
                continue
            candidates = trials[request["run"]]["candidates"]
            known = {one["winner"]["uid"]: one for one in request["rejected"]}
            left = [n for n, one in enumerate(candidates) if one["winner"]["uid"] not in known]
            if left and mode != "works" and not mode.startswith("ahead="):
                send({"of": request["run"], "at": left[0], "stage": "check"})
                act(mode)
            sys.stdout.write("this is no answer\n")
            sys.stdout.flush()
            good = [{"winner": one["winner"], **GOOD} for one in candidates]
            send({"outcomes": [known.get(one["winner"]["uid"], one) for one in good]})


def act(mode: str) -> None:
    """Die, or say nothing more; return when the process that died before was to be the last."""
    path = mode.removeprefix("dies_unless=")
    if path != mode:
        if os.path.exists(path):  # noqa: PTH110  pathlib is slow to import
            return
        os.close(os.open(path, os.O_CREAT))
    if mode != "hangs":
        sys.stderr.write("these are my last words\n")
        os._exit(7)
    time.sleep(3600)


if __name__ == "__main__":
    end_with_parent()
    serve(sys.argv[1], int(sys.argv[2]))
