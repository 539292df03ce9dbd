"""`MachineWatch`: waits until a machine is quiet, and records what disturbs the measurements.

On a CPU that is the load of other processes, on a GPU its `Condition`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from warmup.core.machine_state import BUSY_SHARE, NOT_CHECKED, MachineState
from warmup.measuring.cpu_load import CpuReading, others_share, read_cpus
from warmup.measuring.gpu_state import clock_note, read_condition

_WINDOW_S: Final = 1.0  # shorter spans are too few ticks of /proc/stat
_LOOK_AGAIN_S: Final = 0.5

# Called with what disturbs and for how many seconds at most the build waits.
OnWait = Callable[[str, float], None]


def _ignore(_reason: str, _seconds: float) -> None:
    return None


@dataclass
class MachineWatch:
    """Watches the machine of *device* while a build measures there.

    ``own`` returns the process IDs that are the build's, and ``read`` reads the CPUs. ``turn``
    makes a context that is open while this process measures, with the wait for quiet: where several
    processes of a build measure on one device, it lets one in at a time.
    """

    device: torch.device
    own: Callable[[], frozenset[int]] = lambda: frozenset({os.getpid()})
    read: Callable[[], CpuReading | None] = read_cpus
    turn: Callable[[], AbstractContextManager[None]] = nullcontext
    clocks: list[int] = field(default_factory=list)  # SM clocks seen after trials, in MHz
    _wait_s: float = 0.0
    _on_wait: OnWait = _ignore
    _readings: list[CpuReading] = field(default_factory=list)
    _shares: list[float] = field(default_factory=list)
    _measured: int = 0
    _waited_s: float = 0.0

    def start(self, wait_s: float, on_wait: OnWait) -> None:
        """From now on wait before a measurement while the machine is busy, *wait_s* in all.

        *on_wait* is called whenever a wait begins.
        """
        self._wait_s, self._on_wait = wait_s, on_wait

    @contextmanager
    def measuring(self) -> Iterator[Callable[[], bool]]:
        """Wait for quiet, then record the load of the measurement inside.

        Gives a function that returns, after the context, whether the measurement was disturbed.
        """
        shares: list[float] = []
        with self.turn():
            self.wait_for_quiet()
            self._note()
            yield lambda: any(share > BUSY_SHARE for share in shares)
        self._measured += 1
        if (share := self._share_of_late()) is not None:
            shares.append(share)
            self._shares.append(share)

    def wait_for_quiet(self) -> None:
        """Return when the machine is quiet, or no seconds to wait are left."""
        started, is_told = time.monotonic(), False
        while self._waited_s < self._wait_s and (reason := self._disturbance()) is not None:
            if not is_told:
                self._on_wait(reason, self._wait_s - self._waited_s)
                is_told = True
            time.sleep(_LOOK_AGAIN_S)
            now = time.monotonic()
            self._waited_s, started = self._waited_s + now - started, now

    def state(self) -> MachineState:
        """Return what disturbed the measurements until now."""
        last = self._readings[-1] if self._readings else None
        complaints, notes = self._look(after_build=True)
        return MachineState(
            measured=self._measured,
            disturbed=sum(share > BUSY_SHARE for share in self._shares),
            cpus=last.usable if last else 0.0,
            worst_share=max(self._shares, default=None),
            waited_s=self._waited_s,
            complaints=complaints,
            notes=notes,
        )

    def remarks(self) -> tuple[str, ...]:
        """Return what makes measurements on a GPU doubtful now, and what is only noted."""
        complaints, notes = self._look()
        return (*complaints, *notes)

    def _look(self, *, after_build: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the complaints about a GPU and the notes; none for a CPU.

        *after_build* the load of the device is ignored: it is that of the build.
        """
        condition = read_condition(self.device, self.own())
        if condition.unknown is not None:
            return (), (f"{NOT_CHECKED}{condition.unknown}",)
        if after_build:
            condition = replace(condition, used_percent=None)
        note = clock_note(self.clocks, is_power_capped=condition.is_power_capped)
        return condition.complaints, () if note is None else (note,)

    def _disturbance(self) -> str | None:
        """Return what makes the machine busy now; None when it is quiet or cannot be read."""
        if self.device.type != "cpu":
            found = self._gpu_load() if not self._measured else ()  # later the load is the build's
            return f"the GPU: {', '.join(found)}" if found else None
        self._note()
        while self._readings and self._span_s() < _WINDOW_S:
            time.sleep(_LOOK_AGAIN_S)
            self._note()
        share = self._share_of_late()
        if share is None or share <= BUSY_SHARE:
            return None
        return f"other processes take {share:.0%} of {self._readings[-1].usable:g} CPUs"

    def _gpu_load(self) -> tuple[str, ...]:
        """Return what keeps the GPU busy or slow while this process leaves it idle."""
        for idle_s in (0.0, _WINDOW_S):  # a moment ago this process may have used it
            time.sleep(idle_s)
            # Memory of other processes disturbs nothing by itself, and stays for long.
            condition = replace(read_condition(self.device, self.own()), others=0)
            if not condition.complaints:
                return ()
        return condition.complaints

    def _note(self) -> None:
        """Read the CPUs; keep the last readings that span at least `_WINDOW_S`."""
        if self.device.type != "cpu" or (reading := self.read()) is None:
            return
        self._readings.append(reading)
        while len(self._readings) > 2 and reading.at - self._readings[1].at >= _WINDOW_S:  # noqa: PLR2004  the two that span the window
            del self._readings[0]

    def _span_s(self) -> float:
        return self._readings[-1].at - self._readings[0].at

    def _share_of_late(self) -> float | None:
        """Return the share that other processes took over the last second or more."""
        self._note()
        if len(self._readings) < 2 or not self._span_s():  # noqa: PLR2004  a share needs two
            return None
        return others_share(self._readings[0], self._readings[-1])
