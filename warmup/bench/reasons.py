"""`reason_of`: an error as a one-line reason for a report. `Say`: a function that prints a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warmup.core.errors import warmup_error_in

Say = Callable[[str], None]

_REASON_LENGTH: Final = 300


def reason_of(error: BaseException) -> str:
    """Return the first line of *error*, or of the warmup error that torch.compile wrapped in it.

    Lines without text in front are left out: some compilers' errors begin with one.
    """
    own = warmup_error_in(error)
    first = str(error if own is None else own).strip().partition("\n")[0]
    text = f"{type(error).__name__}: {first}" if own is None else first
    return " ".join(text.split())[:_REASON_LENGTH]
