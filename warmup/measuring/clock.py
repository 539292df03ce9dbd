"""How long a call takes on a device: batches of calls, each on operands of its own.

A batch is some calls in a row between two events. Before a batch with a cold L2 the cache is
overwritten once, and since every call of the batch has its own operands, every call finds it cold;
where there is one operand set only, calls are timed alone, each after overwriting the L2.
Calls that are launched one by one wait behind a kernel that sleeps while the host enqueues them, so
that the time holds no host work; with CUDA graphs the batch is one graph.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

from warmup.core.method import L2, Launch
from warmup.core.trial import TimedCall

_US_PER_S: Final = 1e6
_US_PER_MS: Final = 1e3
_BATCH_US: Final = 1000.0
_CPU_BATCH_US: Final = 2000.0  # other work of the host shows less in a longer one
_MAX_CALLS: Final = 64  # of a batch; the launch queue of a stream holds 1024
_WARM_CALLS: Final = 3
_FLUSH_FACTOR: Final = 2  # bytes overwritten, in sizes of the L2
_CPU_FLUSH: Final = 64 * 2**20
_LAUNCH_US: Final = 50.0  # more than the host takes to launch a graph
_HEADSTART: Final = 1.5
_LONELY_CALLS: Final = 5


class Batch(Protocol):
    """Calls that are ready to be timed."""

    calls: int

    def time(self) -> float:
        """Return the device time of one call in microseconds, as the mean over one batch."""


def batch_of(call: TimedCall, device: torch.device, launch: Launch, l2: L2, sets: int) -> Batch:
    """Return *call* ready to be timed on *device*; it has run a few times then.

    *sets* is the number of operand sets that the call knows. With a cold L2 a batch has at most so
    many calls.

    Raises:
        Exception: whatever the call raises, or that it cannot be captured into a CUDA graph.
    """
    if device.type == "cpu":
        return _HostBatch(call, *_sized(call, device, l2, sets), l2)
    if l2 is L2.COLD and sets == 1:
        _, enqueue_us = _sized(call, device, l2, sets)
        is_graph = launch is Launch.CUDAGRAPH
        alone = _captured(call, device, 1).replay if is_graph else functools.partial(call, 0)
        return _LonelyBatch(alone, device, enqueue_us)
    if launch is Launch.CUDAGRAPH:
        return _GraphBatch(call, device, l2, *_sized(call, device, l2, sets))
    return _StreamBatch(call, device, l2, *_sized(call, device, l2, sets))


def wall_us(call: TimedCall, device: torch.device, calls: int) -> tuple[float, float]:
    """Return host microseconds per call until all are enqueued, and until all are finished."""
    _synchronize(device)
    start = time.perf_counter()
    for number in range(calls):
        call(number)
    enqueued = time.perf_counter()
    _synchronize(device)
    finished = time.perf_counter()
    return (enqueued - start) * _US_PER_S / calls, (finished - start) * _US_PER_S / calls


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.synchronize(device)


def _sized(call: TimedCall, device: torch.device, l2: L2, sets: int) -> tuple[int, float]:
    """Return how many calls a batch has, and the microseconds the host takes to enqueue one.

    The number follows from the device time alone, so that calls of one device time share what a
    batch costs alike, however long the host takes for each.
    """
    for number in range(_WARM_CALLS):
        call(number)
    enqueue, finish = min(wall_us(call, device, _WARM_CALLS) for _ in range(2))
    if device.type == "cpu":
        batch_us, busy = _CPU_BATCH_US, finish
    else:
        batch_us, busy = _BATCH_US, min(_device_us(call, device, enqueue) for _ in range(2))
    most = min(_MAX_CALLS, sets) if l2 is L2.COLD else _MAX_CALLS
    return max(1, min(most, math.ceil(batch_us / max(busy, 1.0)))), enqueue


def _device_us(call: TimedCall, device: torch.device, enqueue_us: float) -> float:
    """Return about how long the device works on one call that takes *enqueue_us* to launch."""
    events = _Events()
    _sleep(int(_cycles_per_us(device) * (_HEADSTART * enqueue_us * _WARM_CALLS + _LAUNCH_US)))
    with events:
        for number in range(_WARM_CALLS):
            call(number)
    return events.elapsed_us / _WARM_CALLS


@dataclass
class _Flush:
    """Overwrites more memory than the last cache holds."""

    device: torch.device
    _buffer: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.device.type == "cpu":
            size = _CPU_FLUSH
        else:
            size = torch.cuda.get_device_properties(self.device).L2_cache_size * _FLUSH_FACTOR
        self._buffer = torch.empty(size, dtype=torch.uint8, device=self.device)

    def __call__(self) -> None:
        self._buffer.zero_()


_flushes: dict[torch.device, _Flush] = {}


def _flush(device: torch.device) -> None:
    if device not in _flushes:
        _flushes[device] = _Flush(device)
    _flushes[device]()


class _HostBatch:
    """Calls on the CPU, timed by the host's clock."""

    def __init__(self, call: TimedCall, calls: int, _enqueue_us: float, l2: L2) -> None:
        self.calls = calls
        self._call, self._l2, self._device = call, l2, torch.device("cpu")

    def time(self) -> float:
        if self._l2 is L2.COLD:
            _flush(self._device)
        return wall_us(self._call, self._device, self.calls)[1]


class _Events:
    """Two events around work on the current stream."""

    def __init__(self) -> None:
        make: Any = torch.cuda.Event  # untyped in torch
        self._start, self._end = make(enable_timing=True), make(enable_timing=True)

    def __enter__(self) -> None:
        self._start.record()

    def __exit__(self, *_: object) -> None:
        self._end.record()

    @property
    def elapsed_us(self) -> float:
        self._end.synchronize()
        milliseconds: float = self._start.elapsed_time(self._end)
        return milliseconds * _US_PER_MS


class _StreamBatch:
    """Calls that are launched one by one, while a kernel ahead of them sleeps."""

    def __init__(
        self, call: TimedCall, device: torch.device, l2: L2, calls: int, enqueue_us: float
    ) -> None:
        self.calls = calls
        self._call, self._device, self._l2 = call, device, l2
        wait_us = _HEADSTART * enqueue_us * calls + _LAUNCH_US
        self._sleep = int(_cycles_per_us(device) * wait_us)
        self._events = _Events()

    def time(self) -> float:
        _sleep(self._sleep)
        if self._l2 is L2.COLD:
            _flush(self._device)
        with self._events:
            for number in range(self.calls):
                self._call(number)
        return self._events.elapsed_us / self.calls


class _LonelyBatch:
    """Calls that share one operand set: before each the L2 is overwritten, each is timed alone."""

    def __init__(self, call: Callable[[], object], device: torch.device, enqueue_us: float) -> None:
        self.calls = _LONELY_CALLS
        self._call, self._device = call, device
        wait_us = _HEADSTART * (enqueue_us + _LAUNCH_US) * self.calls
        self._sleep = int(_cycles_per_us(device) * wait_us)
        self._events = [_Events() for _ in range(self.calls)]

    def time(self) -> float:
        _sleep(self._sleep)
        for events in self._events:
            _flush(self._device)
            with events:
                self._call()
        return statistics.median(events.elapsed_us for events in self._events)


class _GraphBatch:
    """Calls that were captured into one CUDA graph."""

    def __init__(
        self, call: TimedCall, device: torch.device, l2: L2, calls: int, _enqueue_us: float
    ) -> None:
        self.calls = calls
        self._device, self._l2 = device, l2
        self._graph = _captured(call, device, calls)
        self._sleep = int(_cycles_per_us(device) * _LAUNCH_US)
        self._events = _Events()

    def time(self) -> float:
        _sleep(self._sleep)
        if self._l2 is L2.COLD:
            _flush(self._device)
        with self._events:
            self._graph.replay()
        return self._events.elapsed_us / self.calls


def _captured(call: TimedCall, device: torch.device, calls: int) -> torch.cuda.CUDAGraph:
    """Return a graph of so many calls, which has run once."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(device)
    stream = torch.cuda.current_stream(device)
    own = None if stream == torch.cuda.default_stream(device) else stream
    with torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"):
        for number in range(calls):
            call(number)
    graph.replay()
    return graph


def _sleep(cycles: int) -> None:
    wait: Any = torch.cuda._sleep  # noqa: SLF001  torch's own way to keep a stream waiting; untyped
    wait(cycles)


_clock_rates: dict[torch.device, float] = {}


def _cycles_per_us(device: torch.device) -> float:
    """Return how many cycles of ``torch.cuda._sleep`` make a microsecond here, measured once."""
    if device not in _clock_rates:
        cycles = 1_000_000
        _sleep(cycles)
        events = _Events()
        with events:
            _sleep(cycles)
        _clock_rates[device] = cycles / events.elapsed_us
    return _clock_rates[device]
