"""`reason_of`: an error as a one-line reason for a report. `Say`: a function that prints a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warmup.core.errors import warmup_error_in

Say = Callable[[str], None]

_REASON_LENGTH: Final = 300


def reason_of(error: BaseException) -> str:
    """Return the first line of *error*, or of the warmup error that torch.compile wrapped in it."""
    own = warmup_error_in(error)
    text = str(own) if own is not None else f"{type(error).__name__}: {error}"
    return " ".join(text.strip().partition("\n")[0].split())[:_REASON_LENGTH]
