"""`time_control`: the time of the control problem, a product that every device of a build times.

`warmup.tuning.devices.comparable` says which devices are left out for it.
"""

from __future__ import annotations

from typing import Final

import torch

from warmup.core.errors import BuildError
from warmup.core.rows import Family, Winner
from warmup.measuring.screening import time_calls
from warmup.tuning.tuner import Tuner

_GPU_CONTROL_SIZE: Final = 4096  # limited by the clock, not by launches
_CPU_CONTROL_SIZE: Final = 256
_REPEATS: Final = 3
_CONTROL: Final = Winner(Family.EXTERN, "aten::mm")


def time_control(tuner: Tuner) -> float:
    """Return the time of the control problem on the tuner's device, in microseconds.

    The smallest of several medians: what disturbs a measurement makes it longer.

    Raises:
        BuildError: the device cannot run the control problem.
    """
    device = tuner.device
    size, dtype = _GPU_CONTROL_SIZE, torch.bfloat16
    if device.type == "cpu":
        size, dtype = _CPU_CONTROL_SIZE, torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    times = []
    for _ in range(_REPEATS):
        with tuner.watch.measuring(), torch.no_grad():
            (outcome,) = time_calls(
                {_CONTROL: lambda _: torch.mm(a, b, out=out)}, _CONTROL, device, tuner.method
            )
        if outcome.time_us is None:
            raise BuildError(
                f"the control problem, a product of {size} x {size}, failed: {outcome.said}",
                "run `warmup doctor`",
            )
        times.append(outcome.time_us)
    return min(times)
