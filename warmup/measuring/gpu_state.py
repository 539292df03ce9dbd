"""`Condition`: what may disturb measurements on a GPU: other processes, load, throttled clocks.

Read through NVML (the extra nvidia-ml-py). Without it the condition says what was not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

# NVML's reasons for a lowered clock (nvml.h, nvmlClocksEventReason*). Those for an idle GPU and for
# clocks set by the user are left out: they do not disturb a measurement. Nor does the power cap,
# under which every large matmul runs: the candidates of a trial take turns at the same clock.
_THROTTLE_REASONS: Final = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_POWER_CAP: Final = 0x4
_BUSY_PERCENT: Final = 5
_CLOCK_DROP: Final = 0.8  # full power takes an H200 from 1980 to 1560 MHz


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The state of a GPU at one moment. Clocks are in MHz, memory in MiB.

    ``unknown`` says what could not be read; the other fields are empty then. ``others`` counts the
    visible processes on the GPU that are not ours, ``others_mib`` is their memory, and
    ``used_percent`` is the GPU's utilization over NVML's last sampling period.
    """

    unknown: str | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    used_percent: int | None = None
    others: int = 0
    others_mib: int = 0
    throttled_by: tuple[str, ...] = field(default=())
    is_power_capped: bool = False

    @property
    def complaints(self) -> tuple[str, ...]:
        """Reasons to doubt a measurement, each as a short phrase."""
        phrases = []
        if self.others:
            holders = "another process holds" if self.others == 1 else f"{self.others} others hold"
            phrases.append(f"{holders} {self.others_mib} MiB of it")
        if self.used_percent is not None and self.used_percent > _BUSY_PERCENT:
            phrases.append(f"it is {self.used_percent} % busy")
        if self.throttled_by:
            phrases.append(f"its clock is throttled: {', '.join(self.throttled_by)}")
        return tuple(phrases)


def read_condition(device: torch.device, own: frozenset[int] = frozenset()) -> Condition:
    """Return the condition of *device*, not counting *own* process IDs; empty for a CPU."""
    if device.type != "cuda":
        return Condition()  # on a CPU the spread of the times shows disturbances
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
    """Return the current SM clock of *device*, None where it cannot be read."""
    return read_condition(device).clock_mhz


def clock_note(under_load: Sequence[int], *, is_power_capped: bool) -> str | None:
    """Return at which SM clocks, in MHz, rows were timed *under_load*; None if equal enough.

    That is no doubt: the candidates of a row are timed in turns, at one clock.
    """
    cause = " at full power" if is_power_capped else ""
    if not under_load:
        return "the SM clock is lowered at full power" if is_power_capped else None
    low, high = min(under_load), max(under_load)
    if low >= high * _CLOCK_DROP and not is_power_capped:
        return None
    span = f"{low} MHz" if low == high else f"{low} to {high} MHz"
    return f"the SM clock was {span}{cause}; a row's times and peak are at the row's own clock"


def _handle(pynvml: Any, device: torch.device) -> Any:
    # CUDA_VISIBLE_DEVICES renumbers devices for CUDA and not for NVML; the UUID is the same.
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def _read(pynvml: Any, handle: Any, own: frozenset[int]) -> Condition:
    processes = [
        process
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        if process.pid not in own
    ]
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return Condition(
        clock_mhz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        max_clock_mhz=pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        used_percent=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        others=len(processes),
        others_mib=sum((process.usedGpuMemory or 0) >> 20 for process in processes),
        throttled_by=tuple(name for bit, name in _THROTTLE_REASONS.items() if reasons & bit),
        is_power_capped=bool(reasons & _POWER_CAP),
    )
