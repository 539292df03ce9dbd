"""`natural_order`: the order in which keys are listed."""

from __future__ import annotations

import re


def natural_order(text: str) -> tuple[str | tuple[int, str], ...]:
    """Return a sort key that puts ``m=16`` before ``m=128``, for any text."""
    parts = re.split(r"0*([0-9]+)", text)  # text and digits in turn
    return tuple((len(part), part) if i % 2 else part for i, part in enumerate(parts))
