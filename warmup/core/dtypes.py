"""Dtype names: short ones (``bf16``) in keys, options and inputs, torch's (``bfloat16``) in trials.

Knows names only, and imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# Bytes per element of each dtype that an input or an option can name.
ITEM_BYTES: Final[Mapping[str, int]] = {
    "f64": 8,
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "i64": 8,
    "i32": 4,
    "i8": 1,
    "u8": 1,
    "bool": 1,
}
_BITS: Final = re.compile(r"[a-z]+([0-9]+)")
_PREFIXES: Final = (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"))


def dtype_name(dtype: object) -> str:
    """Return the short name of the torch dtype *dtype*, such as ``bf16`` or ``f8_e4m3fn``."""
    name = str(dtype).removeprefix("torch.")
    for long, short in _PREFIXES:
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name


def torch_name(name: str) -> str:
    """Return torch's name of the dtype with the short *name*: ``bfloat16`` for ``bf16``."""
    for long, short in _PREFIXES:
        if name.startswith(short):
            return long + name.removeprefix(short)
    return name


def item_bytes(name: str) -> int:
    """Return the bytes of an element of the dtype with the short *name*, at least 1.

    The name says the bits: ``bf16``, ``i1`` (a bool in Triton's signatures), ``f8_e4m3fn``.
    """
    if name in ITEM_BYTES:
        return ITEM_BYTES[name]
    bits = _BITS.match(name)
    return max(int(bits[1]) // 8, 1) if bits else 1
