"""The worker of one device: ``python -m warmup.tuning.device_worker FD``.

The tuner of a build on one device, which takes its problems from a parent process, by the messages
of `warmup.tuning.devices`. The order and then the tasks arrive on standard input; answers go to the
file descriptor FD.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import torch

from warmup.core.errors import BuildError, ModelError, ProblemError, WarmupError, cause_in
from warmup.core.files import DeviceLock
from warmup.core.processes import answering
from warmup.core.rows import Family, Winner
from warmup.measuring.machine import descendants_of
from warmup.measuring.trial import time_calls
from warmup.tuning.build import (
    BuildContext,
    BuildRequest,
    ThisProcess,
    open_context,
    seconds_to_wait,
)
from warmup.tuning.devices import ProblemTask, ReadyWorker, WorkerOrder, to_message
from warmup.tuning.problems import ProblemsSource, tune_rebuilt
from warmup.tuning.report import BucketResult, Observer, ProblemResults
from warmup.tuning.tuner import Tuner

_GPU_CONTROL_SIZE: Final = 4096  # limited by the clock, not by launches
_CPU_CONTROL_SIZE: Final = 256
_REPEATS: Final = 3
_CONTROL: Final = Winner(Family.EXTERN, "aten::mm")
_SHORTAGES: Final = (torch.OutOfMemoryError, MemoryError)
_BEAT_S: Final = 5.0
Send = Callable[[Mapping[str, Any]], None]


def serve(requests: BinaryIO, send: Send) -> None:
    """Start as the first line of *requests* orders, and tune each problem that follows."""
    order = msgspec.json.decode(requests.readline(), type=WorkerOrder)
    with ExitStack() as stack:
        try:
            request = BuildRequest(
                source=ProblemsSource(()),  # the tasks say which
                runner=ThisProcess(),
                out=Path(order.folder, "rows.json"),
                options=order.options,
            )
            context = stack.enter_context(open_context(request, Observer()))
            ready = _start(order, context, send)
        except WarmupError as error:
            send({"gone": str(error)})
            return
        send({"ready": to_message(ready)})
        for line in requests:
            finished = _tune(msgspec.json.decode(line, type=ProblemTask), context)
            if isinstance(finished, str):
                send({"lost": f"ran out of memory: {finished}"})
                return  # the memory of this process is free again when it has ended
            send({"finished": to_message(finished)})


def _start(order: WorkerOrder, context: BuildContext, send: Send) -> ReadyWorker:
    context.request.source.open(context)
    watch, wait_s = context.tuner.watch, order.options.wait_for_quiet
    watch.device_lock = DeviceLock(Path(order.turn)).taken
    watch.own = partial(descendants_of, order.parent)
    watch.start(seconds_to_wait(wait_s), lambda reason, s: send({"waiting": reason, "seconds": s}))
    return ReadyWorker(
        runtime=context.setup.runtime,
        policy=context.setup.policy,
        control_us=time_control(context.tuner) if order.is_first else None,
        remarks=watch.remarks(),
    )


def time_control(tuner: Tuner) -> float:
    """Return the time of the control problem on the tuner's device, in microseconds."""
    # The smallest of several medians: what disturbs a measurement makes it longer.
    device = tuner.device
    size, dtype = _GPU_CONTROL_SIZE, torch.bfloat16
    if device.type == "cpu":
        size, dtype = _CPU_CONTROL_SIZE, torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    calls, times = {_CONTROL: lambda _: torch.mm(a, b, out=out)}, []
    for _ in range(_REPEATS):
        with tuner.watch.measuring(), torch.no_grad():
            (outcome,) = time_calls(calls, _CONTROL, device, tuner.method)
        if outcome.time_us is None:
            raise BuildError(
                f"the control problem, a product of {size} x {size}, failed: {outcome.said}",
                "run `warmup doctor`",
            )
        times.append(outcome.time_us)
    return min(times)


def _tune(task: ProblemTask, context: BuildContext) -> ProblemResults | str:
    progress, tuner, key = context.progress, context.tuner, task.key
    progress.receive(task.rows)
    progress.reopen([key])
    if task.is_again:
        progress.measure_again([key])
    known = tuner.rows.not_tuned, tuner.rows.not_fused, progress.distrusted
    before, since = tuple(map(dict, known)), len(progress.tuned)
    buckets, not_rebuilt = list[BucketResult](), dict[str, str]()
    try:
        buckets.append(tune_rebuilt(key, context))
    except (*_SHORTAGES, BuildError, ModelError, ProblemError) as error:
        if (cause := cause_in(error, *_SHORTAGES)) is not None:
            return str(cause).partition("\n")[0]
        not_rebuilt[key] = str(error)
    tuned = {one.key: one for one in progress.tuned[since:] if one.key in progress.table.rows}
    not_tuned, not_fused, distrusted = (
        {name: why for name, why in now.items() if earlier.get(name) != why}
        for now, earlier in zip(known, before, strict=True)
    )
    return ProblemResults(
        timings=tuple(tuned.values()),
        peaks=progress.table.provenance.peaks,
        buckets=tuple(buckets),
        not_rebuilt=not_rebuilt,
        not_tuned=not_tuned,
        not_fused=not_fused,
        distrusted=distrusted,
        stages=tuner.clock.take(),
        machine=tuner.watch.state(),
    )


def main() -> None:
    ended = threading.Event()
    with answering() as send:

        def beat() -> None:  # a sign of life as long as this process runs Python
            while not ended.wait(_BEAT_S):
                send({"beat": True})

        threading.Thread(target=beat, daemon=True).start()
        try:
            serve(sys.stdin.buffer, send)
        finally:  # else the last words of this process are those of a beat without a pipe
            ended.set()


if __name__ == "__main__":
    main()
