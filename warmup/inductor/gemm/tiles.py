"""`choices_for_tiles`: candidates of a template for tiles that inductor does not list.

The template's heuristic computes everything that depends on the problem (tiles larger than the
problem, EVEN_K, the accumulator's type, the usable number of warps), so a tile may come from any
source. `missing_resource` says which tiles a device cannot launch.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch._inductor.choices import get_template_heuristic  # type: ignore[attr-defined]
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.virtualized import V

from warmup.core.errors import InductorChangedError
from warmup.core.search import Resource
from warmup.inductor.gemm.templates.swapped import SWAPPED

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


WIDE_SEARCH_OPS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "int_mm", "scaled_mm"})
# Kwargs that the lowering gives to every candidate of a template, not the heuristic.
_GIVEN: Final = frozenset({"USE_FAST_ACCUM", "SCALE_RECIPE_A", "SCALE_RECIPE_B"})
_FEW_ROWS: Final = 64
_WARPGROUP_MAJOR: Final = 9  # compute capability; from 10 on another MMA replaces warpgroup MMA
_ASYNC_BYTES: Final = 4  # the smallest asynchronous copy
_LISTED_BYTES: Final = 2  # of the elements that the tiles below were listed for
# m, n, k, stages, warps. With few rows the time is that of reading the weights, which takes many
# blocks with many loads in flight. Inductor's list stops at 128 x 128 of the weights and five
# stages, and has no tile that is both narrow and deep.
_FOR_FEW_ROWS: Final = (
    *((16, 16, 256, 6, 1), (16, 32, 128, 6, 2), (16, 32, 256, 4, 2), (16, 32, 256, 6, 2)),
    *((16, 64, 64, 6, 4), (16, 64, 128, 4, 2), (16, 64, 128, 6, 4), (16, 64, 256, 4, 4)),
    *((16, 64, 256, 5, 4), (16, 128, 64, 6, 4), (16, 128, 128, 5, 4), (16, 128, 128, 6, 8)),
    *((16, 128, 256, 4, 4), (16, 128, 256, 4, 8), (16, 256, 64, 4, 4), (16, 256, 64, 6, 8)),
    *((16, 256, 128, 4, 4), (16, 256, 128, 4, 8)),
)
# Tiles two or four warpgroup MMAs wide, and mid-sized tiles with deep pipelines. Inductor lists the
# former for persistent TMA only, the latter for no template.
_FOR_MANY_ROWS: Final = (
    *((64, 64, 128, 4, 4), (64, 128, 64, 5, 4), (64, 128, 128, 3, 4), (64, 256, 64, 3, 4)),
    *((64, 256, 64, 4, 4), (64, 256, 64, 4, 8), (128, 64, 64, 5, 4), (128, 64, 128, 3, 4)),
    *((128, 128, 64, 4, 4), (128, 128, 64, 4, 8), (128, 256, 64, 3, 8), (128, 256, 64, 4, 8)),
    *((256, 64, 64, 4, 4), (256, 64, 64, 4, 8), (256, 128, 64, 3, 8), (256, 128, 64, 4, 8)),
)


def wide_search_tiles(kernel_inputs: Any) -> tuple[Mapping[str, int], ...]:
    """Return the tiles that a wide search tries for this problem, as kwargs of a template."""
    rows, deeper = kernel_inputs.mnk_symbolic()[0], depth_factor(kernel_inputs)
    few = V.graph.sizevars.statically_known_leq(rows, _FEW_ROWS)
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
    tiles = _FOR_FEW_ROWS if few else _FOR_MANY_ROWS
    return tuple(
        dict(zip(names, (m, n, k * deeper, stages, warps), strict=True))
        for m, n, k, stages, warps in tiles
    )


def depth_factor(kernel_inputs: Any) -> int:
    """Return how many times as deep as for 16-bit factors a tile is for this problem.

    A tile of 8-bit factors is twice as deep, so that it loads as many bytes.
    """
    itemsize: int = kernel_inputs.mat1mat2()[0].get_dtype().itemsize
    return max(_LISTED_BYTES // itemsize, 1)


def choices_for_tiles(
    base: Any, kernel_inputs: Any, op_name: str, tiles: Iterable[Mapping[str, Any]]
) -> Iterator[Any]:
    """Return choices of the template of *base* for *tiles*, which may come from other problems.

    *base* is any choice of the template for this problem. Of the kwargs of a tile only those of a
    config are used: block sizes, stages, warps and the like.

    Raises:
        InductorChangedError: the template's heuristic has no configs.
    """
    heuristic = _heuristic(base, kernel_inputs, op_name)
    config, *_ = _configs(heuristic, "mm_configs")
    names = {field.name for field in dataclasses.fields(config)} - {"hint_override"}
    configs = [
        dataclasses.replace(
            config, **{key.lower(): value for key, value in tile.items() if key.lower() in names}
        )
        for tile in tiles
    ]
    return _choices(heuristic, base, kernel_inputs, op_name, configs)


def exhaustive_choices(base: Any, kernel_inputs: Any, op_name: str) -> Iterator[Any]:
    """Return choices of the template of *base* for every tile of inductor's exhaustive list.

    Inductor's option EXHAUSTIVE is not set: it omits tiles that spill, and functions that cache
    its value would keep it (torch/_inductor/utils.py, get_k_splits).

    Raises:
        InductorChangedError: as above.
    """
    heuristic = _heuristic(base, kernel_inputs, op_name)
    configs = _configs(heuristic, "exhaustive_configs")
    return _choices(heuristic, base, kernel_inputs, op_name, configs)


def _heuristic(base: Any, kernel_inputs: Any, op_name: str) -> Any:
    return get_template_heuristic(base.template.uid, kernel_inputs.device_type, op_name)


def _configs(heuristic: Any, name: str) -> list[Any]:
    configs: list[Any] = getattr(heuristic, name, [])
    if not configs:
        raise InductorChangedError(f"{type(heuristic).__qualname__}.{name} is gone")
    return configs


def _choices(
    heuristic: Any, base: Any, kernel_inputs: Any, op_name: str, configs: list[Any]
) -> Iterator[Any]:
    private = copy.copy(heuristic)  # inductor shares the heuristic between threads
    private.mm_configs = private.exhaustive_configs = configs
    given = {name: value for name, value in base.params.to_kwargs().items() if name in _GIVEN}
    for params in private.get_template_configs(kernel_inputs, op_name):
        complete = type(base.params)({**params.to_kwargs(), **given})
        yield KernelTemplateChoice(
            base.template, complete, base.extra_kwargs, base.layout, base.inputs
        )


def capacity_of(device: torch.device) -> Capacity:
    """Return the limits of a block on the CUDA *device*."""
    properties: Any = torch.cuda.get_device_properties(device)
    return Capacity(
        shared_memory=properties.shared_memory_per_block_optin,
        registers=properties.regs_per_multiprocessor,
        warp_size=properties.warp_size,
        has_warpgroups=properties.major == _WARPGROUP_MAJOR,
    )


def gemm_operands_of(kernel_inputs: Any, *, by_tma: bool) -> tuple[GemmOperand, GemmOperand]:
    """Return what the shared memory of a tile depends on, for both factors."""
    a, b = (
        GemmOperand(node.get_dtype().itemsize, is_staged=by_tma or _is_staged(node))
        for node in kernel_inputs.mat1mat2()
    )
    return a, b


def _is_staged(node: Any) -> bool:
    """Whether rows (or columns) are known to be aligned for asynchronous copies."""
    sizevars = V.graph.sizevars
    *_, first, second = node.get_stride()
    pitch = second if sizevars.statically_known_equals(first, 1) else first
    unit = max(_ASYNC_BYTES // node.get_dtype().itemsize, 1)
    return all(
        bool(sizevars.statically_known_multiple_of(size, unit))
        for size in (pitch, node.get_layout().offset)
    )


def tile_of(choice: Any) -> Tile | None:
    """Return the tile that a template choice multiplies, None for a choice without a tile."""
    tile = Tile.of(choice.params.to_kwargs())
    return tile.turned if tile is not None and choice.template.uid == SWAPPED.uid else tile
