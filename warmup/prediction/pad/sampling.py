"""`draw_pad_keys`: random unaligned GEMMs as pad keys, the same ones for the same seed.

Half of the GEMMs have sizes drawn uniformly from 1 to 65536. In the other half each size is a power
of two from 2 to 65536 or, with probability 0.25, a number between two such powers. A GEMM that
needs no padding, or is too large, is thrown away, and another is drawn. Each operand is transposed
with probability 0.5, and free, made by an operation before the GEMM, with probability 0.2 if it is
contiguous. In f32 one half is multiplied as tf32.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from warmup.core.dtypes import item_bytes
from warmup.core.errors import SettingsError
from warmup.keys.gemm import Dim, Layout
from warmup.keys.pad import PadProblem
from warmup.keys.weight import ALIGNED_BYTES

SAMPLED_DTYPES: Final = ("f16", "bf16", "f32")
MOST_GIB: Final = 8.0  # of the operands and the result of one sample
# Of one sample that is to be measured: some 3 ms on an H100, where float32 may be multiplied
# without tensor cores. Without a limit a sample takes minutes: dozens of candidates are timed.
MOST_OPERATIONS: Final = {"f16": 2e12, "bf16": 2e12, "f32": 1.5e11}
_LARGEST_SAMPLE: Final = 65536
_LARGEST_POWER: Final = 16
_UNIFORM: Final = 0.5
_BETWEEN: Final = 0.25
_TRANSPOSED: Final = 0.5
_FREE: Final = 0.2
_TF32_SHARE: Final = 0.5
_MOST_DRAWS: Final = 100_000  # of a GEMM that is thrown away, or was drawn before


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Return the dtypes in *text*, such as ``f16,bf16``.

    Raises:
        SettingsError: a dtype is not sampled, or none is named.
    """
    dtypes = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if unknown := [word for word in dtypes if word not in SAMPLED_DTYPES]:
        raise SettingsError(
            f"--dtypes: {', '.join(map(repr, unknown))} is not sampled",
            f"use any of {','.join(SAMPLED_DTYPES)}",
        )
    return dtypes


def draw_pad_keys(
    seed: int,
    dtypes: Sequence[str],
    most_gib: float = MOST_GIB,
    most_operations: Mapping[str, float] | None = None,
) -> Iterator[str]:
    """Yield different pad keys without end: those of fewer samples are the first of more samples.

    *most_operations*, by dtype, limits the operations of a sample; None does not.

    Raises:
        SettingsError: nearly nothing that is drawn is small enough.
    """
    chance = random.Random(seed)  # noqa: S311  no secret
    drawn: set[str] = set()
    while True:
        is_uniform = chance.random() < _UNIFORM  # of a sample, however often it is drawn again
        for _ in range(_MOST_DRAWS):
            key = _draw(chance, dtypes, most_gib, most_operations, is_uniform=is_uniform)
            if key is not None and key not in drawn:
                break
        else:
            raise SettingsError(
                f"no further GEMM of at most {most_gib:g} GiB was drawn", "ask for fewer samples"
            )
        drawn.add(key)
        yield key


def _draw(
    chance: random.Random,
    dtypes: Sequence[str],
    most_gib: float,
    most_operations: Mapping[str, float] | None,
    *,
    is_uniform: bool,
) -> str | None:
    """Return one key; None for a GEMM that needs no padding or is too large."""
    dtype = chance.choice(dtypes)
    m, n, k = (_draw_size(chance, is_uniform=is_uniform) for _ in range(3))
    size = item_bytes(dtype)
    is_aligned = all(each * size % ALIGNED_BYTES == 0 for each in (m, n, k))
    is_large = most_operations is not None and 2 * m * n * k > most_operations[dtype]
    if is_aligned or is_large or (m * k + k * n + m * n) * size > most_gib * 2**30:
        return None
    orders = ["col" if chance.random() < _TRANSPOSED else "row" for _ in range(2)]
    for operand, sides in enumerate(((m, k), (k, n))):
        if 1 in sides:  # rows and columns are the same, and a key says rows
            orders[operand] = "row"
    free = "".join(
        letter
        for letter, order in zip("ab", orders, strict=True)
        if order == "row" and chance.random() < _FREE
    )
    fp32 = None
    if dtype == "f32":
        fp32 = "tf32" if chance.random() < _TF32_SHARE else "ieee"
    return PadProblem(
        op="mm",
        m=Dim.of(m),
        n=Dim.of(n),
        k=Dim.of(k),
        dtype=dtype,
        a=Layout(orders[0]),
        b=Layout(orders[1]),
        free=free,
        fp32=fp32,
    ).key


def _draw_size(chance: random.Random, *, is_uniform: bool) -> int:
    if is_uniform:
        return chance.randint(1, _LARGEST_SAMPLE)
    power = chance.randint(1, _LARGEST_POWER)
    if chance.random() >= _BETWEEN or power == 1:
        return 1 << power
    return chance.randint(2 ** (power - 1) + 1, 2**power - 1)
