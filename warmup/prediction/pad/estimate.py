"""`GemmWays`: an unaligned GEMM, and what padding should gain by what limits either way.

A way takes as long as its arithmetic, its memory or its launch, whichever is longest; padding adds
copies of the operands. The output costs no copy: what follows reads a view of the padded one.
The constants are round numbers near what 195 samples of an H200 showed (timings/h200-pads.jsonl.gz
under docs/benchmarks/results). A tree splits at fitted limits of the gain, not at zero: on another
device the estimate may be off by a factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

# Operations per microsecond: of tensor cores in 16 bits, in tf32, and of float32 without them.
_HALF_RATE: Final = 600e6
_TF32_RATE: Final = 300e6
_FLOAT_RATE: Final = 45e6
_BYTES_PER_US: Final = 3.6e6
_SHORTEST_US: Final = 2.0
_EACH_COPY_US: Final = 1.3
# What tensor cores reach of their rate, by the binary logarithm of the bytes of which the rows of
# both operands are a multiple: 1, 2, 4, 8 and 16. Copies to shared memory need 4 bytes, TMA 16.
_REACHED: Final = (0.25, 0.25, 0.4, 0.5, 0.9)
_HALF_BYTES: Final = 2


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
    def copied_operands(self) -> tuple[tuple[int, int], ...]:
        """Of each operand that padding copies, the elements before and after."""
        (m, n, k), (padded_m, padded_n, padded_k) = self.dims, self.padded
        operands = (((m, k), (padded_m, padded_k)), ((k, n), (padded_k, padded_n)))
        return tuple(
            (math.prod(before), math.prod(after))
            for (before, after), is_free in zip(operands, self.is_free, strict=True)
            if before != after and not is_free
        )

    def estimate_gain(self) -> float:
        """Return the binary logarithm of how many times as fast the padded GEMM should be."""
        aligned = len(_REACHED) - 1
        padded = self._gemm_us(self.padded, aligned) + self._copies_us()
        return math.log2(self._gemm_us(self.dims, self.alignment) / padded)

    def _gemm_us(self, dims: tuple[int, int, int], alignment: int) -> float:
        m, n, k = dims
        moved = (m * k + k * n + m * n) * self.item_bytes
        return max(2 * m * n * k / self._rate(alignment), moved / _BYTES_PER_US, _SHORTEST_US)

    def _rate(self, alignment: int) -> float:
        if self.item_bytes == _HALF_BYTES:
            return _HALF_RATE * _REACHED[alignment]
        if self.is_tf32:
            return _TF32_RATE * _REACHED[alignment]
        return _FLOAT_RATE

    def _copies_us(self) -> float:
        moved = sum(map(sum, self.copied_operands)) * self.item_bytes
        return moved / _BYTES_PER_US + _EACH_COPY_US * len(self.copied_operands)
