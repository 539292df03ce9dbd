"""`CallCost`: what a compiled call of a bucket costs the host and the device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallCost:
    """Microseconds that the host takes to enqueue a call, and the device to run its kernels.

    Both are those of calls launched one by one. ``left_out`` repeated layers of the model were left
    out of the call.
    """

    host_us: float
    device_us: float
    left_out: int = 0

    @property
    def is_host_limited(self) -> bool:
        """Whether the device waits for the host when calls are launched one by one."""
        return self.host_us > self.device_us

    @property
    def launched_us(self) -> float:
        """Microseconds between two calls that are launched one by one."""
        return max(self.host_us, self.device_us)
