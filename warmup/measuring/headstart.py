"""`Headstart`: a sleeping kernel, behind which the host enqueues the calls that a GPU is timed by.

While it sleeps no call runs. When it ends and all calls are in the queue, the time between two
events around them contains no work of the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

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
        """Whether the device has reached the work between them."""
        return bool(self._start.query())

    @property
    def elapsed_us(self) -> float:
        """Microseconds of the device between them; waits for the second."""
        self._end.synchronize()
        milliseconds: float = self._start.elapsed_time(self._end)
        return milliseconds * _US_PER_MS


class Headstart:
    """A kernel on *device* that sleeps for *wait_us*, which the host needs to enqueue some calls.

    The host is slower while other processes use its cores. Where the device began the calls before
    the host had enqueued them all, their time is not used: they run again behind a kernel that
    sleeps twice as long, from then on. That is done three times at most; a time after that may
    contain work of the host, and shows in the spread. A call of more kernels than a stream's queue
    holds (1024) is never enqueued while the kernel sleeps.
    """

    def __init__(self, device: torch.device, wait_us: float) -> None:
        self._cycles = int(_cycles_per_us(device) * wait_us)
        self._doublings = _DOUBLINGS

    def run(self, enqueue: Callable[[], None], events: Events) -> None:
        """Call *enqueue* behind the sleeping kernel; *events* are around what it enqueues first.

        Afterwards *enqueue* has returned before the device reached *events*, unless the sleep was
        doubled three times.
        """
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


_clock_rates: dict[torch.device, float] = {}


def _cycles_per_us(device: torch.device) -> float:
    """Return the cycles of ``torch.cuda._sleep`` per microsecond, measured once per device."""
    if device not in _clock_rates:
        cycles = 1_000_000
        _sleep(cycles)
        events = Events()
        with events:
            _sleep(cycles)
        _clock_rates[device] = cycles / events.elapsed_us
    return _clock_rates[device]
