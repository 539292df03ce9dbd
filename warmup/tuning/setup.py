"""What a build stands on: the torch, the device and the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warmup.table.policy import Asked, choose_policy

if TYPE_CHECKING:
    import torch

    from warmup.core.runtime import Runtime
    from warmup.inductor.adapter import Inductor
    from warmup.table import Policy


@dataclass(frozen=True, slots=True)
class Ground:
    """Found fit for a build."""

    inductor: Inductor
    device: torch.device
    runtime: Runtime
    policy: Policy


def find_ground(device: str, asked: Asked) -> Ground:
    """Return what a build on *device* stands on.

    Raises:
        SettingsError: the device, its compiler or what is *asked* for cannot be used.
        AdapterError: this torch is not supported.
    """
    from warmup.inductor import connect, start_workers
    from warmup.inductor.machine import check_compiler, resolve_device

    start_workers(device)  # they get ready while the rest is imported
    inductor = connect()
    found = resolve_device(device)
    check_compiler(found)
    policy = choose_policy(asked, found.type, inductor.quiet_switches())
    return Ground(inductor, found, inductor.runtime(str(found)), policy)
