"""`GemmWays`: an unaligned GEMM, and what padding should gain by what limits either way.

A way takes as long as its arithmetic, its memory or its launch, whichever is longest; padding adds
copies of the operands. The output costs no copy: what follows reads a view of the padded one.
The rates of the arithmetic are a device's (`rates.py` fits them); the other constants are round
numbers near what the first 195 samples of an H200 showed (timings/h200-pads.jsonl.gz under
docs/benchmarks/results). A tree splits at fitted limits of the gain, not at zero: on another device
the estimate may be off by a factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

UNITS: Final = ("half", "tf32", "float32")  # the members of `GemmRates`
ALIGNMENTS: Final = 5  # rows of which the bytes are a multiple of 1, 2, 4, 8 and 16
_BYTES_PER_US: Final = 3.6e6
_SHORTEST_US: Final = 2.0
_EACH_COPY_US: Final = 1.3
_HALF_BYTES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRates:
    """Operations per microsecond that GEMMs reach which arithmetic limits, each at five alignments.

    ``half`` is of tensor cores in 16 bits, ``tf32`` in tf32, ``float32`` without tensor cores.
    Copies to shared memory need rows of 4 bytes, TMA rows of 16.
    """

    half: tuple[float, ...]
    tf32: tuple[float, ...]
    float32: tuple[float, ...]


_REACHED: Final = (0.25, 0.25, 0.4, 0.5, 0.9)  # by tensor cores, of their rate
# Near what the first 195 samples of an H200 showed: 600, 300 and 45 million operations per us.
USUAL_RATES: Final = GemmRates(
    half=tuple(600e6 * reached for reached in _REACHED),
    tf32=tuple(300e6 * reached for reached in _REACHED),
    float32=(45e6,) * ALIGNMENTS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmWays:
    """A GEMM of ``dims`` m, n and k, and of ``padded`` dims where it is padded.

    ``alignment`` is the binary logarithm of the bytes of which the rows of both operands are a
    multiple. ``is_free`` says of each operand whether its padding costs no copy.
    """

    dims: tuple[int, int, int]
    padded: tuple[int, int, int]
    item_bytes: int
    is_tf32: bool
    alignment: int
    is_free: tuple[bool, bool]

    @property
    def unit(self) -> str:
        """What multiplies: a name in `UNITS`."""
        if self.item_bytes == _HALF_BYTES:
            return "half"
        return "tf32" if self.is_tf32 else "float32"

    @property
    def copied_operands(self) -> tuple[tuple[int, int], ...]:
        """Of each operand that padding copies, the elements before and after."""
        (m, n, k), (padded_m, padded_n, padded_k) = self.dims, self.padded
        operands = (((m, k), (padded_m, padded_k)), ((k, n), (padded_k, padded_n)))
        return tuple(
            (math.prod(before), math.prod(after))
            for (before, after), is_free in zip(operands, self.is_free, strict=True)
            if before != after and not is_free
        )

    @property
    def operations(self) -> tuple[int, int]:
        """The additions and multiplications as the GEMM is, and padded."""
        return 2 * math.prod(self.dims), 2 * math.prod(self.padded)

    @property
    def copies_us(self) -> float:
        """What the copies that padding makes should take."""
        moved = sum(map(sum, self.copied_operands)) * self.item_bytes
        return moved / _BYTES_PER_US + _EACH_COPY_US * len(self.copied_operands)

    @property
    def least_us(self) -> tuple[float, float]:
        """What memory and launch should take as the GEMM is, and padded, without copies."""
        return self._moving_us(self.dims), self._moving_us(self.padded)

    def estimate_gain(self, rates: GemmRates) -> float:
        """Return the binary logarithm of how many times as fast the padded GEMM should be."""
        reached = getattr(rates, self.unit)
        operations, padded_operations = self.operations
        least_us, padded_least_us = self.least_us
        as_is_us = max(operations / reached[self.alignment], least_us)
        padded_us = max(padded_operations / reached[-1], padded_least_us) + self.copies_us
        return math.log2(as_is_us / padded_us)

    def _moving_us(self, dims: tuple[int, int, int]) -> float:
        m, n, k = dims
        return max((m * k + k * n + m * n) * self.item_bytes / _BYTES_PER_US, _SHORTEST_US)
