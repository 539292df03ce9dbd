"""`runners_of`: the runners of a build on the devices of this host."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from warmup.tuning.devices.local_runner import LocalRunner, Patience
from warmup.tuning.devices.messages import WorkerOrder
from warmup.tuning.devices.names import DeviceSlot
from warmup.tuning.devices.runner import Runner
from warmup.tuning.report import Observer

THREADS_VARIABLE: Final = "TORCHINDUCTOR_COMPILE_THREADS"


def runners_of(
    slots: Iterable[DeviceSlot],
    order: WorkerOrder,
    patience: Patience,
    observer: Observer | None = None,
) -> list[Runner]:
    """Return a runner for each worker of *slots*, the first workers of all devices first.

    The workers share the CPU cores for compiling. Each does *order* on its own device.
    """
    watcher = observer or Observer()
    workers = sum(slot.lanes for slot in slots)
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    own = {} if THREADS_VARIABLE in os.environ else {THREADS_VARIABLE: str(threads)}

    def on_wait(name: str, reason: str, seconds: float) -> None:
        watcher.waiting_started(f"{name}: {reason}", seconds)

    lanes = [(lane, slot) for slot in slots for lane in range(slot.lanes)]
    return [
        LocalRunner(
            name=slot.name if not lane else f"{slot.name} ({lane + 1})",
            device=slot.name,
            order=replace(
                order,
                device=slot.inside,
                turn=str(Path(order.folder) / f"turn-{slot.name.replace(':', '-')}"),
            ),
            environment={**slot.environment, **own},
            patience=patience,
            on_wait=on_wait,
        )
        for lane, slot in sorted(lanes, key=lambda each: each[0])
    ]
