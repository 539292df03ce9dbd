"""The worker of one device: ``python -m warmup.tuning.devices.worker FD``.

It is the tuner of a build on one device, which takes its problems from a parent process. Messages
are JSON objects, one per line. The order and then the tasks arrive on standard input; answers go to
the file descriptor FD. The other end is `warmup.tuning.devices.host`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch

from warmup.core.child_process import end_with_parent
from warmup.core.errors import BuildError, ModelError, ProblemError, WarmupError, cause_in
from warmup.core.measuring_turn import Turn
from warmup.core.process_family import descendants_of
from warmup.core.rows import Family, Winner
from warmup.measuring.screening import time_calls
from warmup.models.rebuilt import rebuild
from warmup.table.store import add_rows
from warmup.tuning.budget import parse_budget
from warmup.tuning.devices.messages import (
    FinishedProblem,
    ProblemTask,
    ReadyWorker,
    WorkerOrder,
    from_json,
    to_json,
)
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.rebuilt_problem import tune_rebuilt
from warmup.tuning.report import BucketResult, Observer
from warmup.tuning.setup import BuildSetup, find_setup, open_table
from warmup.tuning.tuner import Tuner, make_tuner

_GPU_CONTROL_SIZE: Final = 4096  # limited by the clock, not by launches
_CPU_CONTROL_SIZE: Final = 256
_REPEATS: Final = 3
_CONTROL: Final = Winner(Family.EXTERN, "aten::mm")
_SHORTAGES: Final = (torch.OutOfMemoryError, MemoryError)
_BEAT_S: Final = 5.0
Send = Callable[[Mapping[str, Any]], None]


class _OutOfMemoryError(Exception):
    """This process has no memory left for a problem; another may have."""


def serve(requests: BinaryIO, send: Send) -> None:
    """Start as the first line of *requests* orders, and tune each problem that follows."""
    order = from_json(json.loads(requests.readline()), WorkerOrder)
    try:
        setup = find_setup(order.device, order.policy)
        path = Path(order.folder) / "rows.json"
        table, _ = open_table(path, setup, force=False)
    except WarmupError as error:
        send({"gone": str(error)})
        return
    with make_tuner(setup.policy, setup.device) as tuner:
        tuner.region_questions.is_used = True  # a rebuilt module is compiled again
        tuner.watch.turn = Turn(Path(order.turn)).taken
        tuner.watch.own = partial(descendants_of, order.parent)
        tuner.watch.start(order.wait_s, lambda reason, s: send({"waiting": reason, "seconds": s}))
        progress = Progress(
            path=path,
            table=table,
            replaces=False,
            observer=Observer(),
            can_search=setup.can_search,
            given_up=tuner.rows.not_tuned,
            measured_peaks=tuner.bounds.peaks,
            revisit=Revisit(search=parse_budget(order.search, None).search),
        )
        complaints = tuner.watch.complaints()
        try:
            control_us = time_control(tuner) if order.is_first else None
        except BuildError as error:
            send({"gone": str(error)})
            return
        ready = ReadyWorker(
            runtime=setup.runtime,
            policy=setup.policy,
            control_us=control_us,
            complaints=complaints,
            can_search=setup.can_search,
        )
        send({"ready": to_json(ready)})
        for line in requests:
            task = from_json(json.loads(line), ProblemTask)
            try:
                send({"finished": to_json(_tune(task, setup, progress, tuner))})
            except _OutOfMemoryError as error:
                send({"lost": f"ran out of memory: {error}"})
                return  # the memory of this process is free again when it has ended


def time_control(tuner: Tuner) -> float:
    """Return the time of the control problem on the tuner's device, in microseconds.

    The smallest of several medians: what disturbs a measurement makes it longer.

    Raises:
        BuildError: the device cannot run the control problem.
    """
    device = tuner.device
    size, dtype = _GPU_CONTROL_SIZE, torch.bfloat16
    if device.type == "cpu":
        size, dtype = _CPU_CONTROL_SIZE, torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    times = []
    for _ in range(_REPEATS):
        with tuner.watch.measuring(), torch.no_grad():
            (outcome,) = time_calls(
                {_CONTROL: lambda _: torch.mm(a, b, out=out)}, _CONTROL, device, tuner.method
            )
        if outcome.time_us is None:
            raise BuildError(
                f"the control problem, a product of {size} x {size}, failed: {outcome.said}",
                "run `warmup doctor`",
            )
        times.append(outcome.time_us)
    return min(times)


def _tune(
    task: ProblemTask, setup: BuildSetup, progress: Progress, tuner: Tuner
) -> FinishedProblem:
    """Return what came of *task*.

    Raises:
        _OutOfMemoryError: this process has no memory left for it.
    """
    key, table = task.key, progress.table
    if task.rows:
        progress.table = add_rows(
            progress.path, table.provenance, table.policy, task.rows, redo=True
        )
    progress.reopen([key])
    if task.is_again:
        progress.measure_again([key])
    known = tuner.rows.not_tuned, tuner.rows.not_fused, progress.distrusted
    before, since = tuple(map(dict, known)), len(progress.tuned)
    buckets: tuple[BucketResult, ...] = ()
    not_rebuilt: dict[str, str] = {}
    try:
        rebuilt = rebuild(key, setup.device)
        number = task.number, task.total
        result = tune_rebuilt(key, rebuilt, setup, progress, tuner, number=number)
        buckets = (result,)
    except (*_SHORTAGES, BuildError, ModelError, ProblemError) as error:
        if (cause := cause_in(error, *_SHORTAGES)) is not None:
            raise _OutOfMemoryError(str(cause).partition("\n")[0]) from error
        not_rebuilt[key] = str(error)
    tuned = {one.key: one for one in progress.tuned[since:] if one.key in progress.table.rows}
    not_tuned, not_fused, distrusted = (
        {name: why for name, why in now.items() if earlier.get(name) != why}
        for now, earlier in zip(known, before, strict=True)
    )
    return FinishedProblem(
        key=key,
        tuned=tuple(tuned.values()),
        peaks=progress.table.provenance.peaks,
        buckets=buckets,
        not_rebuilt=not_rebuilt,
        not_tuned=not_tuned,
        not_fused=not_fused,
        distrusted=distrusted,
        stages=tuner.clock.take(),
        machine=tuner.watch.state(),
    )


def _beat(send: Send) -> None:
    """Send a sign of life every few seconds, as long as this process runs Python."""
    while not threading.Event().wait(_BEAT_S):
        send({"beat": True})


def main() -> None:
    """Serve the parent process; the last argument is the file descriptor for answers."""
    end_with_parent()
    lock = threading.Lock()
    with os.fdopen(int(sys.argv[-1]), "wb") as answers:

        def send(message: Mapping[str, Any]) -> None:
            line = json.dumps(message).encode() + b"\n"
            with lock:
                answers.write(line)
                answers.flush()

        threading.Thread(target=_beat, args=(send,), daemon=True).start()
        serve(sys.stdin.buffer, send)


if __name__ == "__main__":
    main()
