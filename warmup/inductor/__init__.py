"""The only folder that names torch._inductor.

`connect()` is the way in: it checks the torch that runs here and returns what can be done with it.
`start_workers()` may go before it, so that inductor's workers start while it imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmup.inductor.adapter import Inductor


def connect() -> Inductor:
    """Return the adapter to the installed torch, after checking each internal it names.

    Raises:
        UnsupportedTorchError: this torch is outside the supported range.
        InductorChangedError: an internal is gone or has another signature.
    """
    from warmup.inductor.adapter import Inductor  # imports torch: only on demand

    return Inductor.here()


def start_workers(device: str) -> None:
    """Start inductor's compile workers when *device* is a GPU, before the rest is imported.

    Raises:
        UnsupportedTorchError: this torch is outside the supported range.
        InductorChangedError: an internal is gone or has another signature.
    """
    from warmup.inductor.workers import start_workers  # imports torch: only on demand

    start_workers(device)
