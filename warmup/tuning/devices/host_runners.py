"""`runners_of`: the runners of a build on the devices of this host."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

from warmup.tuning.devices.local_runner import LocalRunner, Patience
from warmup.tuning.devices.messages import WorkerOrder
from warmup.tuning.devices.names import DeviceSlot
from warmup.tuning.devices.runner import Runner
from warmup.tuning.report import Observer

_THREADS_VARIABLE: Final = "TORCHINDUCTOR_COMPILE_THREADS"


class HasLanes(Protocol):
    """A device with so many workers."""

    @property
    def lanes(self) -> int:
        """How many workers the device has."""
        ...


Slot = TypeVar("Slot", bound=HasLanes)


def runners_of(
    slots: Sequence[DeviceSlot],
    order: WorkerOrder,
    patience: Patience,
    observer: Observer | None = None,
) -> list[Runner]:
    """Return a runner for each worker of *slots*, the first workers of all devices first.

    The workers share the CPU cores for compiling. Each does *order* on its own device.
    """
    watcher = observer or Observer()
    own = compile_threads(sum(slot.lanes for slot in slots), devices=len(slots))

    def on_wait(name: str, reason: str, seconds: float) -> None:
        watcher.waiting_started(f"{name}: {reason}", seconds)

    return [
        LocalRunner(
            name=worker_name(slot.name, lane),
            device=slot.name,
            order=replace(
                order,
                device=slot.inside,
                turn=str(Path(order.folder) / f"turn-{slot.name.replace(':', '-')}"),
                is_first=not lane,
            ),
            environment={**slot.environment, **own},
            patience=patience,
            on_wait=on_wait,
        )
        for lane, slot in in_lanes(slots)
    ]


def in_lanes(slots: Iterable[Slot]) -> list[tuple[int, Slot]]:
    """Return each worker of *slots* as its number and its slot, the first of all slots first."""
    lanes = ((lane, slot) for slot in slots for lane in range(slot.lanes))
    return sorted(lanes, key=lambda each: each[0])


def worker_name(device: str, lane: int) -> str:
    """Return the name for people of the worker *lane* of *device*."""
    return device if not lane else f"{device} ({lane + 1})"


def compile_threads(workers: int, *, devices: int) -> dict[str, str]:
    """Return the variable by which each of *workers* has its share of the CPU cores for compiling.

    One worker of each of *devices* times and has a core for that; the others compile. Where each
    device has one worker, all compile. Empty where the environment has that variable already.
    """
    if _THREADS_VARIABLE in os.environ:
        return {}
    cores = len(os.sched_getaffinity(0))
    share = (cores - devices) // (workers - devices) if workers > devices else cores // workers
    return {_THREADS_VARIABLE: str(max(1, share))}
