"""`parse_devices`: the devices of ``--devices``, and how a process sees one of them alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from warmup.core.errors import SettingsError

ALL: Final = "all"
# Workers of a GPU: one times while the others compile. Of two, none timed for 40 % of a build on
# two H100s with 32 cores (docs/benchmarks/devices.py): the problems take from 2 to 25 s.
GPU_LANES: Final = 3
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_DEVICE_NAME: Final = re.compile(r"cpu|cuda:[0-9]{1,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlot:
    """A device of this host: its ``name`` here, and how a worker of it is started.

    The worker calls the device ``inside``, has the variables ``environment``, and is one of
    ``lanes`` workers.
    """

    name: str
    inside: str
    lanes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


def parse_devices(text: str) -> tuple[DeviceSlot, ...]:
    """Return the devices that *text* names, such as ``cuda:0,cuda:1``, or all GPUs for ``all``.

    ``cpu`` may be named several times: that many processes then take turns on it.

    Raises:
        SettingsError: *text* has another form, or a GPU is not here or named twice.
    """
    names = [name.strip() for name in text.split(",")]
    if names == [ALL]:
        names = [f"cuda:{index}" for index in range(_gpu_count())]
        if not names:
            raise SettingsError("--devices all: there is no GPU here", "name devices, or leave it")
    for name in names:
        if not _DEVICE_NAME.fullmatch(name):
            raise SettingsError(
                f"--devices {text!r}: {name!r} is not a device",
                "use all, or names such as cuda:0,cuda:1",
            )
        if name != "cpu" and names.count(name) > 1:
            raise SettingsError(f"--devices {text!r} has {name} twice", "name each GPU once")
        if name != "cpu" and int(name.partition(":")[2]) >= _gpu_count():
            raise SettingsError(
                f"--devices {text!r}: there are {_gpu_count()} GPUs here, and {name} is not one",
                "name GPUs that exist, or use all",
            )
    cpu = DeviceSlot(name="cpu", inside="cpu", lanes=names.count("cpu"))
    return tuple(cpu if name == "cpu" else _gpu(name) for name in dict.fromkeys(names))


def _gpu(name: str) -> DeviceSlot:
    """Return the slot of a GPU: its workers see no other one, so that nothing lands there."""
    index = int(name.partition(":")[2])
    visible = os.environ.get(VISIBLE)
    shown = visible.split(",")[index].strip() if visible else str(index)
    return DeviceSlot(name=name, inside="cuda:0", lanes=GPU_LANES, environment={VISIBLE: shown})


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count()
