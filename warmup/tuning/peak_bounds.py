"""`PeakBounds`: what the measured peaks of a device say about times."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch

from warmup.core.method import L2
from warmup.core.roofline import Peaks, Work, share_of_peak
from warmup.measuring.device_peaks import measured_peaks


@dataclass
class PeakBounds:
    """The peaks of *device*, measured when they are first needed, as bounds of times with *l2*.

    ``turn`` is that of `MachineWatch`: other processes may measure on the device.
    """

    device: torch.device
    l2: L2
    turn: Callable[[], AbstractContextManager[None]] = nullcontext
    known: Peaks | None = None
    _is_measured: bool = False

    def peaks(self) -> Peaks | None:
        """Return the measured peaks of the device, which are ``known`` from then on."""
        if not self._is_measured:
            with self.turn():
                self.known, self._is_measured = measured_peaks(self.device), True
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return self.known

    def bounding(self, work: Work | None) -> Peaks | None:
        """Return the peaks that bound the time of *work*; None where that is unknown.

        With a warm L2, memory bandwidth is no bound. None on a CPU, which other processes share:
        its peaks are for review, and refuse nothing.
        """
        peaks = self.peaks() if work is not None and self.device.type == "cuda" else None
        if peaks is None or self.l2 is L2.COLD:
            return peaks
        return replace(peaks, gbps=math.inf)

    def floor_us(self, work: Work | None) -> float | None:
        """Return the time of *work* at the peaks; None where no peaks bound it."""
        peaks = self.bounding(work)
        if peaks is None or work is None:
            return None
        return share_of_peak(peaks, work.dtype, work.flops, work.moved, 1.0) or None
