"""In what condition a GPU is: who else is on it, how fast its clock runs, what holds it back.

Read through NVIDIA's own library (nvidia-ml-py, an extra); without it the condition says what could
not be checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

# NVML's reasons for which the clock is lower than it could be; idle and applications' settings
# are no trouble (nvml.h, nvmlClocksEventReason*).
_HELD_BACK: Final = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_BUSY_PERCENT: Final = 5
_CLOCK_DROP: Final = 0.8  # a large product alone takes an H200 from 1980 to 1725 MHz


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One look at a GPU. ``unknown`` says what could not be read; then the rest is empty.

    Clocks are in MHz, memory in MiB. ``others`` are processes on the GPU beside our own, as far as
    this process may see them; ``used_percent`` is how busy the GPU was in the last moment.
    """

    unknown: str | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    used_percent: int | None = None
    others: int = 0
    others_mib: int = 0
    held_back: tuple[str, ...] = field(default=())

    @property
    def complaints(self) -> tuple[str, ...]:
        """What makes a measurement doubtful, each in a few words."""
        found = []
        if self.others:
            who = "another process holds" if self.others == 1 else f"{self.others} others hold"
            found.append(f"{who} {self.others_mib} MiB of it")
        if self.used_percent is not None and self.used_percent > _BUSY_PERCENT:
            found.append(f"it is {self.used_percent} % busy")
        if self.held_back:
            found.append(f"its clock is held back: {', '.join(self.held_back)}")
        return tuple(found)


def look_at(device: torch.device, own: frozenset[int] = frozenset()) -> Condition:
    """Return the condition of *device*, if it is a GPU; *own* processes are not counted."""
    if device.type != "cuda":
        return Condition()  # of a CPU the spread of the times tells
    try:
        import pynvml
    except ImportError:
        return Condition(unknown="other processes, clocks and throttling (no nvidia-ml-py)")
    try:
        pynvml.nvmlInit()
        try:
            return _read(pynvml, _handle(pynvml, device), own)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Condition(unknown=f"other processes, clocks and throttling ({error})")


def sm_clock_mhz(device: torch.device) -> int | None:
    """Return the SM clock of *device* now, None where it cannot be read."""
    return look_at(device).clock_mhz


def clock_dropped(under_load: Sequence[int]) -> str | None:
    """Return what to say when the SM clocks seen *under_load*, in MHz, are too far apart."""
    if not under_load or min(under_load) >= max(under_load) * _CLOCK_DROP:
        return None
    return f"its clock went down to {min(under_load)} from {max(under_load)} MHz while measuring"


def _handle(pynvml: Any, device: torch.device) -> Any:
    # CUDA_VISIBLE_DEVICES renumbers devices for CUDA and not for NVML; the UUID is the same.
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def _read(pynvml: Any, handle: Any, own: frozenset[int]) -> Condition:
    processes = [
        one for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if one.pid not in own
    ]
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return Condition(
        clock_mhz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        max_clock_mhz=pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        used_percent=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        others=len(processes),
        others_mib=sum((one.usedGpuMemory or 0) >> 20 for one in processes),
        held_back=tuple(name for bit, name in _HELD_BACK.items() if reasons & bit),
    )
