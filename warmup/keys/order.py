"""`natural_order`: the order in which keys are listed."""

from __future__ import annotations

import re
import sys


def natural_order(text: str) -> str:
    """Return a sort key that puts ``m=16`` before ``m=128``, for any text.

    A string, which takes a tenth of the memory of a tuple of the parts.
    """
    parts = re.split(r"0*([0-9]+)", text)  # text and digits in turn
    return "".join(
        f"{chr(min(len(part), sys.maxunicode))}{part}" if i % 2 else f"{part}\0"
        for i, part in enumerate(parts)
    )
