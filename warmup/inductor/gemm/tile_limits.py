"""What a GEMM template's tile needs of a GPU, as far as it follows from the numbers.

Shared memory is that of Triton's pipelined loads, found by compiling (Triton 3.6 to 3.9 for
compute capability 9.0): each operand has a buffer for each stage where warpgroup MMA reads its
operands from shared memory, and one buffer less elsewhere. An operand whose rows do not begin at
multiples of four bytes cannot be copied asynchronously, and has one buffer whatever the stages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from warmup.core.search import Resource

_MAX_REGISTERS: Final = 255  # a thread addresses no more
_MIN_REGISTERS: Final = 24  # ptxas gives no kernel a lower limit from sm_70 on
_WARPGROUP: Final = 4  # warps
_WARPGROUP_ROWS: Final = 64
_WARPGROUP_BYTES: Final = 2  # of an element; others depend on the layout of B as well


@dataclass(frozen=True, slots=True)
class Tile:
    """The numbers of a template's config that decide what it needs; sizes are in elements."""

    m: int
    n: int
    k: int
    stages: int
    warps: int

    @classmethod
    def of(cls, kwargs: Mapping[str, object]) -> Tile | None:
        """Return the tile that a template's *kwargs* spell, None when they spell none."""
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
        sizes = [size for name in names if isinstance(size := kwargs.get(name), int)]
        return cls(*sizes) if len(sizes) == len(names) else None


@dataclass(frozen=True, slots=True)
class Factor:
    """One operand of a product: bytes of an element, and whether loads of it can overlap.

    ``is_staged`` is false where it is not known: fewer bytes are then needed for certain.
    """

    itemsize: int
    is_staged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one block may have on a device: bytes of shared memory, and registers."""

    shared_memory: int
    registers: int
    warp_size: int = 32
    has_warpgroups: bool = False


def shared_bytes(tile: Tile, a: Factor, b: Factor, *, has_warpgroups: bool) -> int:
    """Return the bytes of shared memory that *tile* takes at least.

    For 16-bit operands on compute capability 9.0 that is what Triton takes, but for the barriers
    (8 bytes a stage) and the scratch of an epilogue larger than the operands.
    """
    by_warpgroup = (
        has_warpgroups
        and tile.m >= _WARPGROUP_ROWS
        and tile.warps % _WARPGROUP == 0
        and a.itemsize == b.itemsize == _WARPGROUP_BYTES
    )
    buffers = max(tile.stages if by_warpgroup else tile.stages - 1, 1)
    sizes = (tile.m * tile.k * a.itemsize, tile.n * tile.k * b.itemsize)
    counts = [buffers if factor.is_staged else 1 for factor in (a, b)]
    is_pipelined = tile.stages > 1 and (a.is_staged or b.is_staged)
    if not is_pipelined and not by_warpgroup:
        return max(sizes)  # the one may go to registers before the other comes
    return sum(size * count for size, count in zip(sizes, counts, strict=True))


def exceeded(tile: Tile, a: Factor, b: Factor, capacity: Capacity) -> Resource | None:
    """Return what a launch of *tile* lacks for certain, None when it may fit."""
    needed = shared_bytes(tile, a, b, has_warpgroups=capacity.has_warpgroups)
    if needed > capacity.shared_memory:
        return Resource.SHARED_MEMORY
    if tile.warps * capacity.warp_size * _MIN_REGISTERS > capacity.registers:
        return Resource.REGISTERS
    return None


def spills(tile: Tile, warp_size: int = 32) -> bool:
    """Return whether the accumulator alone takes more registers than a thread has.

    Such a tile spills, and inductor leaves it out of its exhaustive list; warmup measures it. On
    devices that accumulate outside the registers (compute capability 10) it need not spill.
    """
    return math.ceil(tile.m * tile.n / (tile.warps * warp_size)) > _MAX_REGISTERS
