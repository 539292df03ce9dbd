"""The provenance of a benchmark: device, versions of torch, Triton, CUDA and driver, and time."""

from __future__ import annotations

import datetime as dt

import torch

from warmup.core.version import __version__
from warmup.inductor import connect


def provenance(device: torch.device) -> dict[str, str | None]:
    """Return the device's name, the versions in use and the time now, in UTC.

    A version that is unknown on this machine is None.

    Raises:
        UnsupportedTorchError, InductorChangedError: this torch cannot be used.
    """
    runtime = connect().runtime(str(device))
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    return {
        "device": runtime.device.name,
        "torch": runtime.torch,
        "triton": runtime.triton,
        "cuda": runtime.cuda,
        "driver": runtime.driver,
        "warmup": __version__,
        "date": now.isoformat().replace("+00:00", "Z"),
    }
