"""Candidates of a template for tiles that inductor does not list, made by inductor's own rules.

What depends on the problem (a tile that reaches beyond it, EVEN_K, the accumulator's type, how many
warps a tile can use) is worked out by the template's heuristic, so a tile can come from anywhere.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch._inductor.choices import get_template_heuristic  # type: ignore[attr-defined]
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.virtualized import V

from warmup.core.errors import InductorChangedError
from warmup.inductor.gemm.tile_limits import Capacity, Factor, Tile

STATED_OPS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_FEW_ROWS: Final = 64
_WARPGROUPS_SINCE: Final = 9  # compute capability; from 10 on another MMA takes their place
_ASYNC_BYTES: Final = 4  # the least that an asynchronous copy moves
# m, n, k, stages, warps. With few rows a product is as fast as its weights are read, which takes
# many blocks and many loads on their way. Inductor's list has at most 128 x 128 of the weights and
# five stages, and no narrow tile that is deep as well.
_FOR_FEW_ROWS: Final = (
    *((16, 16, 256, 6, 1), (16, 32, 128, 6, 2), (16, 32, 256, 4, 2), (16, 32, 256, 6, 2)),
    *((16, 64, 64, 6, 4), (16, 64, 128, 4, 2), (16, 64, 128, 6, 4), (16, 64, 256, 4, 4)),
    *((16, 64, 256, 5, 4), (16, 128, 64, 6, 4), (16, 128, 128, 5, 4), (16, 128, 128, 6, 8)),
    *((16, 128, 256, 4, 4), (16, 128, 256, 4, 8), (16, 256, 64, 4, 4), (16, 256, 64, 6, 8)),
    *((16, 256, 128, 4, 4), (16, 256, 128, 4, 8)),
)
# Two or four warpgroup MMAs wide, and mid-sized ones in deep pipelines. Inductor has the first for
# persistent TMA only, the second for neither.
_FOR_MANY_ROWS: Final = (
    *((64, 64, 128, 4, 4), (64, 128, 64, 5, 4), (64, 128, 128, 3, 4), (64, 256, 64, 3, 4)),
    *((64, 256, 64, 4, 4), (64, 256, 64, 4, 8), (128, 64, 64, 5, 4), (128, 64, 128, 3, 4)),
    *((128, 128, 64, 4, 4), (128, 128, 64, 4, 8), (128, 256, 64, 3, 8), (128, 256, 64, 4, 8)),
    *((256, 64, 64, 4, 4), (256, 64, 64, 4, 8), (256, 128, 64, 3, 8), (256, 128, 64, 4, 8)),
)


def stated_tiles(kernel_inputs: Any) -> tuple[Mapping[str, int], ...]:
    """Return the tiles that a wide search tries for this problem, as a template's kwargs."""
    rows = kernel_inputs.mnk_symbolic()[0]
    few = V.graph.sizevars.statically_known_leq(rows, _FEW_ROWS)
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
    tiles = _FOR_FEW_ROWS if few else _FOR_MANY_ROWS
    return tuple(dict(zip(names, tile, strict=True)) for tile in tiles)


def retiled(
    base: Any, kernel_inputs: Any, op_name: str, tiles: Iterable[Mapping[str, Any]]
) -> Iterator[Any]:
    """Return choices of the template of *base* for *tiles*, kwargs that may be another problem's.

    *base* is any choice of the template for this problem. Only what a config holds is taken of a
    tile: sizes, stages, warps and the like.

    Raises:
        InductorChangedError: the template's heuristic holds no configs.
    """
    heuristic = _heuristic(base, kernel_inputs, op_name)
    some, *_ = _configs(heuristic, "mm_configs")
    names = {field.name for field in dataclasses.fields(some)} - {"hint_override"}
    configs = [
        dataclasses.replace(
            some, **{key.lower(): value for key, value in tile.items() if key.lower() in names}
        )
        for tile in tiles
    ]
    return _choices(heuristic, base, kernel_inputs, op_name, configs)


def exhaustive(base: Any, kernel_inputs: Any, op_name: str) -> Iterator[Any]:
    """Return choices of the template of *base* for every tile of inductor's exhaustive list.

    Inductor's option EXHAUSTIVE would leave those out that spill, and would be remembered by
    functions that read it once for all (torch/_inductor/utils.py, get_k_splits); it is not set.

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
    own = copy.copy(heuristic)  # inductor has one for all threads
    own.mm_configs = own.exhaustive_configs = configs
    for params in own.get_template_configs(kernel_inputs, op_name):
        yield KernelTemplateChoice(
            base.template, params, base.extra_kwargs, base.layout, base.inputs
        )


def capacity_of(device: torch.device) -> Capacity:
    """Return what a block may have on the CUDA *device*."""
    found: Any = torch.cuda.get_device_properties(device)
    return Capacity(
        shared_memory=found.shared_memory_per_block_optin,
        registers=found.regs_per_multiprocessor,
        warp_size=found.warp_size,
        has_warpgroups=found.major == _WARPGROUPS_SINCE,
    )


def factors_of(kernel_inputs: Any, *, by_tma: bool) -> tuple[Factor, Factor]:
    """Return the two operands as far as a tile's shared memory depends on them."""
    a, b = (
        Factor(node.get_dtype().itemsize, is_staged=by_tma or _is_staged(node))
        for node in kernel_inputs.mat1mat2()
    )
    return a, b


def _is_staged(node: Any) -> bool:
    """Whether rows (or columns) are known to begin at multiples of an asynchronous copy."""
    known = V.graph.sizevars
    *_, first, second = node.get_stride()
    long = second if known.statically_known_equals(first, 1) else first
    unit = max(_ASYNC_BYTES // node.get_dtype().itemsize, 1)
    return all(
        bool(known.statically_known_multiple_of(size, unit))
        for size in (long, node.get_layout().offset)
    )


def tile_of(choice: Any) -> Tile | None:
    """Return the tile of a template choice, None for a choice without one."""
    return Tile.of(choice.params.to_kwargs())
