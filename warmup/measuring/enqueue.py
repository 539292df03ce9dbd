"""`EnqueueBatch` and `cost_of`: what the host takes to enqueue calls that it does not wait for.

The queue of the device is empty before each batch, and a batch is short, so that the host never
waits for room in the queue.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final

import torch

from warmup.core.call_cost import CallCost
from warmup.core.method import L2, Launch
from warmup.core.trial import TimedCall
from warmup.measuring.clock import batch_of, wall_us

ENQUEUE_ROUNDS: Final = 12
_MOST_CALLS: Final = 16  # of a batch
_DEVICE_TIMES: Final = 7
_SLOW_TIMES: Final = 5  # of a call that the device does not run twice in a millisecond
_COST_DIGITS: Final = 2


class EnqueueBatch:
    """Calls that are enqueued on *device*: as many as *calls*, and at most 16."""

    def __init__(self, call: TimedCall, device: torch.device, calls: int) -> None:
        self.calls = min(calls, _MOST_CALLS)
        self._call, self._device = call, device

    def time(self) -> float:
        """Wait for the device, enqueue the batch and return the host's microseconds of a call."""
        return wall_us(self._call, self._device, self.calls)[0]


def cost_of(call: Callable[[], object], device: torch.device) -> CallCost:
    """Return what *call*, which has run before, costs the host and *device*, a GPU.

    The L2 is as the call before left it. A call of more kernels than the queue holds, about a
    thousand, has an upper bound of its device time.
    """

    def numbered(_number: int) -> object:
        return call()

    launched = batch_of(numbered, device, Launch.EAGER, L2.WARM, 1)
    enqueued = EnqueueBatch(numbered, device, launched.calls)
    is_slow = launched.calls == 1
    device_times, rounds = (_SLOW_TIMES,) * 2 if is_slow else (_DEVICE_TIMES, ENQUEUE_ROUNDS)
    device_us = statistics.median(launched.time() for _ in range(device_times))
    host_us = statistics.median(enqueued.time() for _ in range(rounds))
    return CallCost(round(host_us, _COST_DIGITS), round(device_us, _COST_DIGITS))
