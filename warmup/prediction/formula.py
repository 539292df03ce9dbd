"""`time_us`: an analytical time of a GEMM candidate, from constants fitted per device and template.

A time is the launch floor, plus the largest of the times that arithmetic, L2 and memory need, each
over the efficiency of the last wave, plus a cost for each iteration over K and for a split of K.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from warmup.prediction.features import CandidateConfig, GemmSizes

# A library picks a kernel by itself: the formula takes the best of these tiles, each split or not.
_LIBRARY_TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 64))
_LIBRARY_SPLITS: Final = (1, 4)
_LIBRARY_BLOCK_K, _LIBRARY_STAGES, _LIBRARY_WARPS = 64, 4, 8
_SHARED_BYTES: Final = 227 * 1024  # of a multiprocessor; of those with less, fewer blocks fit
_THREADS, _WARP_THREADS, _MOST_BLOCKS = 2048, 32, 32
_REGISTERS: Final = 65536
_ACCUMULATOR_BYTES: Final = 4

Terms = tuple[float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class Constants:
    """What is fitted for one template, rate of dtypes and device.

    ``flops`` are operations in a microsecond of one multiprocessor, ``l2_bytes`` and
    ``memory_bytes`` bytes in a microsecond of the device, ``launch_us`` the shortest kernel,
    ``iteration_us`` one iteration over K, ``split_us`` adding the parts of a split K,
    ``unaligned`` by how much more a byte costs where sizes are unaligned.
    """

    flops: float
    l2_bytes: float
    memory_bytes: float
    launch_us: float
    iteration_us: float
    split_us: float
    unaligned: float

    @property
    def values(self) -> tuple[float, ...]:
        """The constants in the order of `CONSTANT_NAMES`."""
        return (
            *(self.flops, self.l2_bytes, self.memory_bytes, self.launch_us),
            *(self.iteration_us, self.split_us, self.unaligned),
        )


CONSTANT_NAMES: Final = tuple(one.name for one in fields(Constants))


def time_us(constants: Constants, sizes: GemmSizes, config: CandidateConfig, sms: int) -> float:
    """Return the time of *config* for *sizes* on a device of *sms* multiprocessors."""
    values = constants.values
    return min(float(combine(values, terms)) for terms in terms_of(sizes, config, sms))


def terms_of(sizes: GemmSizes, config: CandidateConfig, sms: int) -> tuple[Terms, ...]:
    """Return what constants are applied to: one tuple, or one for each kernel a library may pick.

    The terms: operations of the busiest multiprocessor; bytes from L2 over the efficiency of the
    last wave; bytes from memory over the same, or over the share of multiprocessors that are busy
    where all blocks run at a time; iterations one after another; 1 for a split; 1 for unaligned
    operands, for a library also for an unaligned result.
    """
    if config.block_m and config.block_n and config.block_k:
        return (_terms(sizes, config, sms),)
    splits = _LIBRARY_SPLITS if config.is_library else (max(config.split, 1),)
    tiles = (
        CandidateConfig(
            config.uid, m, n, _LIBRARY_BLOCK_K, 8, _LIBRARY_STAGES, _LIBRARY_WARPS, split
        )
        for m, n in _LIBRARY_TILES
        for split in splits
    )
    return tuple(_terms(sizes, tile, sms) for tile in tiles)


def combine(constants: Sequence[Any], terms: Sequence[Any]) -> Any:
    """Return the time of *terms* under *constants*, in the order of `CONSTANT_NAMES`.

    Both may be numbers, or tensors of one shape.
    """
    flops, l2_bytes, memory_bytes, launch_us, iteration_us, split_us, unaligned = constants
    operations, from_l2, from_memory, iterations, is_split, is_unaligned = terms
    dearer = 1 + is_unaligned * (unaligned - 1)
    arithmetic, l2 = operations / flops, from_l2 * dearer / l2_bytes
    memory = from_memory * dearer / memory_bytes
    arithmetic, l2, memory = arithmetic * arithmetic, l2 * l2, memory * memory
    # A smooth maximum: the fourth root of the sum of fourth powers.
    busy = (arithmetic * arithmetic + l2 * l2 + memory * memory) ** 0.25
    return launch_us + busy + iterations * iteration_us * dearer + is_split * split_us


def _terms(sizes: GemmSizes, config: CandidateConfig, sms: int) -> Terms:
    size, split = sizes.item_bytes, config.split
    blocks = math.ceil(sizes.m / config.block_m) * math.ceil(sizes.n / config.block_n)
    tiles = sizes.batch * split * blocks
    iterations = math.ceil(math.ceil(sizes.k / split) / config.block_k)
    depth = iterations * config.block_k
    waves = math.ceil(tiles / sms)
    efficiency = tiles / (waves * sms)
    resident = 1 if config.is_persistent else _resident_blocks(config, size)
    turns = math.ceil(tiles / (sms * resident))
    # A block multiplies all rows of its tile, and reads those that the matmul has.
    rows, columns = min(config.block_m, sizes.m), min(config.block_n, sizes.n)
    loads = tiles * (rows + columns) * depth * size
    operands = (sizes.m + sizes.n) * sizes.k * size + sizes.m * sizes.n * sizes.out_bytes
    partial = 2 * split * sizes.m * sizes.n * _ACCUMULATOR_BYTES if split > 1 else 0
    return (
        2.0 * waves * config.block_m * config.block_n * depth,
        loads / efficiency,
        sizes.batch * (operands + partial) / (min(1.0, tiles / sms) if turns == 1 else efficiency),
        float(turns * iterations),
        float(split > 1),
        float(not sizes.is_aligned or (config.is_library and not sizes.is_out_aligned)),
    )


def _resident_blocks(config: CandidateConfig, size: int) -> int:
    """Return how many blocks of *config* a multiprocessor holds at a time."""
    stages, threads = max(config.stages, 1), _WARP_THREADS * max(config.warps, 1)
    shared = stages * (config.block_m + config.block_n) * config.block_k * size
    registers = config.block_m * config.block_n + 40 * threads
    fits = min(_SHARED_BYTES // max(shared, 1), _THREADS // threads, _REGISTERS // registers)
    return max(1, min(fits, _MOST_BLOCKS))
