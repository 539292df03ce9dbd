"""`shared_bytes` and `missing_resource`: what a template's tile needs of a GPU, by arithmetic.

The model of shared memory is that of Triton's pipelined loads, determined by compiling (Triton 3.6
to 3.9, compute capability 9.0). With warpgroup MMA, which reads operands from shared memory, each
operand has one buffer per stage; otherwise one buffer less. An operand whose rows do not begin at
multiples of four bytes cannot be copied asynchronously and has a single buffer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from warmup.core.search import Resource

_MAX_REGISTERS: Final = 255  # that a thread can address
_MIN_REGISTERS: Final = 24  # per thread; ptxas sets no lower limit from sm_70 on
_WARPGROUP: Final = 4  # warps
_WARPGROUP_ROWS: Final = 64
_WARPGROUP_BYTES: Final = 2  # of an element; other sizes depend on the layout of B as well


@dataclass(frozen=True, slots=True)
class Tile:
    """The numbers of a template's config that decide its needs: block sizes in elements."""

    m: int
    n: int
    k: int
    stages: int
    warps: int

    @classmethod
    def of(cls, kwargs: Mapping[str, object]) -> Tile | None:
        """Return the tile in a template's *kwargs*, None if they contain none."""
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
        sizes = [size for name in names if isinstance(size := kwargs.get(name), int)]
        return cls(*sizes) if len(sizes) == len(names) else None

    @property
    def turned(self) -> Tile:
        """The tile of the transposed product, whose rows are the columns of this one."""
        return Tile(self.n, self.m, self.k, self.stages, self.warps)


@dataclass(frozen=True, slots=True)
class GemmOperand:
    """A factor of a GEMM: bytes of an element, and whether its loads can overlap.

    ``is_staged`` is False if that is not known, which gives a lower bound of the bytes needed.
    """

    itemsize: int
    is_staged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The limits of a block on a device: bytes of shared memory, and registers."""

    shared_memory: int
    registers: int
    warp_size: int = 32
    has_warpgroups: bool = False


def shared_bytes(tile: Tile, a: GemmOperand, b: GemmOperand, *, has_warpgroups: bool) -> int:
    """Return a lower bound of the shared memory of *tile* in bytes.

    For 16-bit operands on compute capability 9.0 the bound is what Triton takes, except barriers (8
    bytes per stage) and the scratch memory of an epilogue larger than the operands.
    """
    by_warpgroup = (
        has_warpgroups
        and tile.m >= _WARPGROUP_ROWS
        and tile.warps % _WARPGROUP == 0
        and a.itemsize == b.itemsize == _WARPGROUP_BYTES
    )
    buffers = max(tile.stages if by_warpgroup else tile.stages - 1, 1)
    sizes = (tile.m * tile.k * a.itemsize, tile.n * tile.k * b.itemsize)
    counts = [buffers if operand.is_staged else 1 for operand in (a, b)]
    is_pipelined = tile.stages > 1 and (a.is_staged or b.is_staged)
    if not is_pipelined and not by_warpgroup:
        return max(sizes)  # an operand may move to registers before the other is loaded
    return sum(size * count for size, count in zip(sizes, counts, strict=True))


def missing_resource(
    tile: Tile, a: GemmOperand, b: GemmOperand, capacity: Capacity
) -> Resource | None:
    """Return the resource that a launch of *tile* certainly lacks, None if it may fit."""
    needed = shared_bytes(tile, a, b, has_warpgroups=capacity.has_warpgroups)
    if needed > capacity.shared_memory:
        return Resource.SHARED_MEMORY
    if tile.warps * capacity.warp_size * _MIN_REGISTERS > capacity.registers:
        return Resource.REGISTERS
    return None


def spills(tile: Tile, warp_size: int = 32) -> bool:
    """Return whether the accumulator of *tile* needs more registers than a thread has.

    Such a tile spills, except on devices that accumulate outside registers (compute capability 10).
    Inductor omits spilling tiles from its exhaustive list; warmup measures them.
    """
    return math.ceil(tile.m * tile.n / (tile.warps * warp_size)) > _MAX_REGISTERS
