"""The adapter to torch: hooks into inductor, and the only folder that imports torch._inductor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmup.inductor.adapter import Inductor


def connect() -> Inductor:
    """Return the adapter to the installed torch, after checking each internal that warmup uses.

    Raises SettingsError where inductor's cache folder cannot be made, UnsupportedTorchError outside
    of the supported range, InductorChangedError where an internal is gone or has another signature.
    """
    from warmup.inductor.host_facts import check_cache_folder

    check_cache_folder()
    from warmup.inductor.adapter import Inductor  # imports torch: only on demand

    return Inductor.of_installed_torch()


def start_workers(device: str, *, for_build: bool = False) -> None:
    """Start inductor's compile workers if *device* is a GPU, before other modules are imported.

    With *for_build* they have a lower priority than what measures beside them. Raises as `connect`.
    """
    from warmup.inductor.host_facts import check_cache_folder

    check_cache_folder()
    from warmup.inductor.machine import start_workers  # imports torch: only on demand

    start_workers(device, for_build=for_build)
