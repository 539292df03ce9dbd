"""`batch_of`: a call prepared for timing, as a batch of calls; `run_rounds` times several in turn.

With a cold L2 the cache is overwritten once before a batch, and no two calls of it share operands;
with a single operand set it is overwritten before every call, and each call is timed alone. Calls
on a GPU wait behind a sleeping kernel while the host enqueues them, or are one CUDA graph, so that
no time contains work of the host.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Protocol, TypeVar

import torch

from warmup.core.device import CallCost
from warmup.core.processes import in_turn
from warmup.core.rows import L2, Launch
from warmup.core.trial import Samples, TimedCall

# `Headstart`: a sleeping kernel, behind which the host enqueues the calls that a GPU is timed by.

_US_PER_MS: Final = 1e3
_DOUBLINGS: Final = 3  # of the sleep of one headstart


class Events:
    """Two CUDA events around work on the current stream."""

    def __init__(self) -> None:
        make: Any = torch.cuda.Event  # untyped in torch
        self._start, self._end = make(enable_timing=True), make(enable_timing=True)

    def __enter__(self) -> None:
        self._start.record()

    def __exit__(self, *_: object) -> None:
        self._end.record()

    @property
    def have_begun(self) -> bool:
        return bool(self._start.query())

    @property
    def elapsed_us(self) -> float:
        """Microseconds of the device between the events; waits for the second."""
        self._end.synchronize()
        milliseconds: float = self._start.elapsed_time(self._end)
        return milliseconds * _US_PER_MS


class Headstart:
    """A kernel that sleeps for *wait_us*, which the host needs to enqueue some calls.

    Where the device began the calls before the host had enqueued them all (other processes use its
    cores), they run again behind a kernel that sleeps twice as long, from then on, three times at
    most; a time after that may contain work of the host, and shows in the spread. A call of more
    kernels than a stream's queue holds (1024) is never enqueued while the kernel sleeps.
    """

    def __init__(self, device: torch.device, wait_us: float) -> None:
        self._cycles = int(_cycles_per_us(device) * wait_us)
        self._doublings = _DOUBLINGS

    def run(self, enqueue: Callable[[], None], events: Events) -> None:
        """Call *enqueue* behind the sleeping kernel; *events* are around what it enqueues first."""
        while True:
            _sleep(self._cycles)
            enqueue()
            if self._doublings == 0 or not events.have_begun:
                return
            self._cycles *= 2
            self._doublings -= 1


def _sleep(cycles: int) -> None:
    wait: Any = torch.cuda._sleep  # noqa: SLF001  torch's way to keep a stream waiting; untyped
    wait(cycles)


@functools.cache
def _cycles_per_us(_device: torch.device) -> float:
    cycles = 1_000_000
    _sleep(cycles)
    events = Events()
    with events:
        _sleep(cycles)
    return cycles / events.elapsed_us


_US_PER_S: Final = 1e6
_BATCH_US: Final = 1000.0
_CPU_BATCH_US: Final = 2000.0  # longer, so that other work of the host matters less
_EMPTY_GRAPH: Final = "The CUDA Graph is empty"  # torch's warning (CUDAGraph.cpp, capture_end)
_MAX_CALLS: Final = 64  # in a batch; the launch queue of a stream holds 1024
_WARM_CALLS: Final = 3
_FLUSH_FACTOR: Final = 2  # times the size of the L2 is overwritten
_CPU_FLUSH: Final = 64 * 2**20
_LAUNCH_US: Final = 50.0  # more than the host takes to launch a graph
_HEADSTART: Final = 1.5
_SINGLE_CALLS: Final = 5


class Batch(Protocol):
    """Prepared calls that can be timed repeatedly."""

    @property
    def calls(self) -> int: ...

    def time(self) -> float:
        """Run the batch and return the device time of a call in microseconds."""


def batch_of(
    call: TimedCall, device: torch.device, l2: L2, sets: int, launch: Launch = Launch.EAGER
) -> Batch:
    """Return a batch of *call* on *device*; the call has run a few times by then.

    *sets* is the number of operand sets of the call, which limits a batch with a cold L2.
    """
    calls, enqueue_us = _batch_size(call, device, l2, sets)
    is_graph = launch is Launch.CUDAGRAPH
    if device.type == "cpu":
        return _HostBatch(call, calls, l2)
    if l2 is L2.COLD and sets == 1:
        alone = _CapturedCalls(call, device, 1).replay if is_graph else functools.partial(call, 0)
        return _SingleCallBatch(alone, device, enqueue_us)
    if is_graph:
        graph = _CapturedCalls(call, device, calls)
        return _DeviceBatch(graph.replay, device, l2, calls, _LAUNCH_US)

    def enqueue() -> None:
        for number in range(calls):
            call(number)

    return _DeviceBatch(enqueue, device, l2, calls, _HEADSTART * enqueue_us * calls + _LAUNCH_US)


def wall_us(call: TimedCall, device: torch.device, calls: int) -> tuple[float, float]:
    """Return the microseconds per call until *calls* are enqueued, and until they are finished."""
    synchronize(device)
    start = time.perf_counter()
    for number in range(calls):
        call(number)
    enqueued = time.perf_counter()
    synchronize(device)
    finished = time.perf_counter()
    return (enqueued - start) * _US_PER_S / calls, (finished - start) * _US_PER_S / calls


def synchronize(device: torch.device) -> None:
    """Wait until *device* has done what was enqueued; a CPU has."""
    if device.type != "cpu":
        torch.cuda.synchronize(device)


def _batch_size(call: TimedCall, device: torch.device, l2: L2, sets: int) -> tuple[int, float]:
    """Return the number of calls in a batch, and the host's microseconds to enqueue one call."""
    # The number depends on the device time only: equally fast candidates have batches of one size.
    for number in range(_WARM_CALLS):
        call(number)
    enqueue_us, finish_us = min(wall_us(call, device, _WARM_CALLS) for _ in range(2))
    if device.type == "cpu":
        batch_us, busy_us = _CPU_BATCH_US, finish_us
    else:
        batch_us = _BATCH_US
        busy_us = min(_device_us(call, device, enqueue_us) for _ in range(2))
    limit = min(_MAX_CALLS, sets) if l2 is L2.COLD else _MAX_CALLS
    return max(1, min(limit, math.ceil(batch_us / max(busy_us, 1.0)))), enqueue_us


def _device_us(call: TimedCall, device: torch.device, enqueue_us: float) -> float:
    events = Events()

    def enqueue() -> None:
        with events:
            for number in range(_WARM_CALLS):
                call(number)

    Headstart(device, _HEADSTART * enqueue_us * _WARM_CALLS + _LAUNCH_US).run(enqueue, events)
    return events.elapsed_us / _WARM_CALLS


@functools.cache
def _flushing(device: torch.device) -> torch.Tensor:
    size = _CPU_FLUSH
    if device.type != "cpu":
        size = torch.cuda.get_device_properties(device).L2_cache_size * _FLUSH_FACTOR
    return torch.empty(size, dtype=torch.uint8, device=device)


class _HostBatch:
    def __init__(self, call: TimedCall, calls: int, l2: L2) -> None:
        self.calls = calls
        self._call, self._l2, self._device = call, l2, torch.device("cpu")

    def time(self) -> float:
        if self._l2 is L2.COLD:
            _flushing(self._device).zero_()
        return wall_us(self._call, self._device, self.calls)[1]


class _DeviceBatch:
    """Calls that *enqueue* makes behind a sleeping kernel, for which the host needs *wait_us*."""

    def __init__(
        self,
        enqueue: Callable[[], object],
        device: torch.device,
        l2: L2,
        calls: int,
        wait_us: float,
    ) -> None:
        self.calls = calls
        self._calls, self._device, self._l2 = enqueue, device, l2
        self._headstart = Headstart(device, wait_us)
        self._events = Events()

    def time(self) -> float:
        self._headstart.run(self._enqueue, self._events)
        return self._events.elapsed_us / self.calls

    def _enqueue(self) -> None:
        if self._l2 is L2.COLD:
            _flushing(self._device).zero_()
        with self._events:
            self._calls()


class _SingleCallBatch:
    def __init__(self, call: Callable[[], object], device: torch.device, enqueue_us: float) -> None:
        self.calls = _SINGLE_CALLS
        self._call, self._device = call, device
        self._headstart = Headstart(device, _HEADSTART * (enqueue_us + _LAUNCH_US) * self.calls)
        self._events = [Events() for _ in range(self.calls)]

    def time(self) -> float:
        self._headstart.run(self._enqueue, self._events[0])
        return statistics.median(events.elapsed_us for events in self._events)

    def _enqueue(self) -> None:
        for events in self._events:
            _flushing(self._device).zero_()
            with events:
                self._call()


class _CapturedCalls:
    """A CUDA graph of *calls* calls, which has run once, and the function that was captured.

    A graph keeps the memory that was allocated while it was captured, and not the operands: those
    live as long as the function that owns them. Calls that launch nothing on the captured stream
    raise a RuntimeError: their time would be that of an empty graph.
    """

    def __init__(self, call: TimedCall, device: torch.device, calls: int) -> None:
        self._call = call
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        stream = torch.cuda.current_stream(device)
        own = None if stream == torch.cuda.default_stream(device) else stream
        with warnings.catch_warnings(record=True) as caught:
            # As an error it would leave the capture's stream current.
            warnings.filterwarnings("always", _EMPTY_GRAPH)
            with torch.cuda.graph(self._graph, stream=own, capture_error_mode="thread_local"):
                for number in range(calls):
                    call(number)
        if any(str(one.message).startswith(_EMPTY_GRAPH) for one in caught):
            raise RuntimeError("the call launches nothing on the stream that is captured")
        for other in caught:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
        self._graph.replay()

    def replay(self) -> None:
        self._graph.replay()


_K = TypeVar("_K", bound=Hashable)


def run_rounds(
    batches: Mapping[_K, Batch], rounds: int, before_each: Callable[[_K], None] | None = None
) -> dict[_K, Samples]:
    """Return *rounds* times of each of *batches*, in turn; *before_each* is called before each."""
    names = list(batches)
    times: dict[_K, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in in_turn(names, number):
            if before_each is not None:
                before_each(name)
            times[name].append(batches[name].time())
    return {name: Samples(tuple(taken)) for name, taken in times.items()}


# `cost_of`: what a call costs the host, which does not wait for it, and the device.

_ENQUEUE_ROUNDS: Final = 12
_MOST_CALLS: Final = 16  # of a batch
_DEVICE_TIMES: Final = 7
_SLOW_TIMES: Final = 5  # of a call that the device does not run twice in a millisecond
_COST_DIGITS: Final = 2


def cost_of(call: Callable[[], object], device: torch.device) -> CallCost:
    """Return what *call*, which has run before, costs the host and *device*, a GPU with a warm L2.

    For a call of more kernels than the queue holds, the device time is an upper bound.
    """
    launched = batch_of(lambda _number: call(), device, L2.WARM, 1)
    calls = min(launched.calls, _MOST_CALLS)
    is_slow = launched.calls == 1
    device_times, rounds = (_SLOW_TIMES,) * 2 if is_slow else (_DEVICE_TIMES, _ENQUEUE_ROUNDS)
    device_us = statistics.median(launched.time() for _ in range(device_times))
    host_us = statistics.median(
        wall_us(lambda _number: call(), device, calls)[0] for _ in range(rounds)
    )
    return CallCost(round(host_us, _COST_DIGITS), round(device_us, _COST_DIGITS))
