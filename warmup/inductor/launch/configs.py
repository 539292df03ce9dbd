"""`winner_of` and `make_config`: from a Triton launch config to a `Winner`, and back with checks.

Inductor drops the bounds checks of a kernel whose sizes are multiples of its largest block
(codegen/triton.py, TRITON_MAX_BLOCK). A larger block, or a block that is no power of two, would
read and write out of bounds: such a config is refused, whatever its source. The lists that a search
begins with are here too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import TRITON_MAX_BLOCK, HeuristicType, ReductionHint
from torch._inductor.runtime.runtime_utils import triton_config_to_hashable
from torch._inductor.runtime.triton_heuristics import config_from_dict

from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Family, KwargValue, Winner, portable_kwargs

_BLOCK_SUFFIX: Final = "BLOCK"
_MAX_WARPS: Final = 32
_MAX_STAGES: Final = 16
_MAX_NUMEL: Final = 1 << 20  # elements of a tensor in a kernel, Triton's limit


def is_block(name: str) -> bool:
    """Return whether the config argument *name* is a block size with a known bound."""
    return name.endswith(_BLOCK_SUFFIX) and name.removesuffix(_BLOCK_SUFFIX) in TRITON_MAX_BLOCK


def winner_of(kernel: Any, config: Any) -> Winner | None:
    """Return *config* of *kernel* as a `Winner`, None if it cannot be written to a table."""
    kwargs = portable_kwargs(kwargs_of(config))
    name = kernel.heuristic_type.name.lower()
    return None if kwargs is None else Winner(Family.LAUNCH, name, kwargs)


def same_config(left: Any, right: Any) -> bool:
    """Return whether two configs of a kernel are equal."""
    return bool(triton_config_to_hashable(left) == triton_config_to_hashable(right))


def refusal_reason(winner: Winner, offered: Sequence[Any] | None) -> MissReason | None:
    """Return the reason why *winner* cannot be forced, None if it can.

    A config among those *offered* by inductor can always be forced. Any other config must have the
    same arguments as the offered configs and stay within inductor's bounds.
    """
    wanted = dict(winner.kwargs)
    if offered is not None:
        known = [kwargs_of(config) for config in offered]
        if wanted in known:
            return None
        if wanted.keys() != known[0].keys():
            return MissReason.TEMPLATE_CHANGED
    if not all(_is_allowed(*item) for item in wanted.items()):
        return MissReason.CHOICE_REJECTED
    blocks = [value for name, value in wanted.items() if is_block(name) and isinstance(value, int)]
    return None if math.prod(blocks) <= _MAX_NUMEL else MissReason.CHOICE_REJECTED


def _is_allowed(name: str, value: KwargValue) -> bool:
    if type(value) is not int or value < 1:
        return False
    if name == "num_stages":
        return value <= _MAX_STAGES
    is_power_of_two = value & (value - 1) == 0
    if name == "num_warps":
        return is_power_of_two and value <= _MAX_WARPS
    if not is_block(name):
        return False
    return is_power_of_two and value <= TRITON_MAX_BLOCK[name.removesuffix(_BLOCK_SUFFIX)]


def make_config(winner: Winner, offered: Sequence[Any]) -> Any:
    """Return the config of *winner*: the equal config among *offered*, else a new config."""
    wanted = dict(winner.kwargs)
    for config in offered:
        if kwargs_of(config) == wanted:
            return config
    return config_from_dict(wanted)


def kwargs_of(config: Any) -> dict[str, Any]:
    """Return *config* as plain values by name, as `config_from_dict` reads them."""
    hashable: Any = triton_config_to_hashable(config)
    return dict(hashable)


_LISTERS: Final = {
    HeuristicType.POINTWISE: "pointwise",
    HeuristicType.REDUCTION: "reduction",
    HeuristicType.PERSISTENT_REDUCTION: "persistent_reduction",
}
_LEAST_SPLIT_SCAN: Final = 256  # inductor's default, runtime/triton_heuristics.py, split_scan
_WARP: Final = 32
_WARPS: Final = (1, 2, 4, 8, 16, 32)
_STAGES: Final = (2, 3)
# What a grid has: elements of a block, and elements of a thread.
_BLOCK_ELEMENTS: Final = (256, 8192)
_TILE_ELEMENTS: Final = (256, 4096)  # of a block with two sides
_PER_THREAD: Final = (4, 16)
_PER_THREAD_OF_TILE: Final = (8, 16)
_MOST_SIDES: Final = 2
_SIDE: Final = 16  # of a tile; shorter rows waste what memory gives
_INNER_LOOP: Final = 1024  # elements of one step along a row
_OUTER_LOOP: Final = (4, 64)  # rows of one step across rows


def listed_by_inductor(kernel: Any, *, max_autotune: bool) -> tuple[Any, ...]:
    """Return the configs that inductor lists for *kernel* with and without max-autotune.

    Empty for kernels whose list cannot be asked for again: split scans, combined kernels, those of
    a user. The same heuristics made the kernel's own list (runtime/triton_heuristics.py), but for a
    square tile of a pointwise kernel, for which default mode lists the first config only.
    """
    make = _LISTERS.get(kernel.heuristic_type)
    if make is None or not kernel.size_hints or "combo_grid_meta" in kernel.inductor_meta:
        return ()
    asked = {"max_autotune": max_autotune, "max_autotune_pointwise": max_autotune}
    arguments: dict[str, Any] = {
        "size_hints": dict(kernel.size_hints),
        "triton_meta": {**kernel.triton_meta, "device": kernel.device_props},
        "inductor_meta": {**kernel.inductor_meta, **asked},
    }
    if make != "pointwise":
        arguments["reduction_hint"] = kernel.inductor_meta.get("reduction_hint")
    configs: list[Any] = getattr(triton_heuristics, make)(**arguments, return_configs=True)
    if "XBLOCK" not in kernel.fn.arg_names:  # inductor drops it then too (cached_autotune)
        for config in configs:
            config.kwargs.pop("XBLOCK", None)
    return tuple(configs)


def default_list(kernel: Any, offered: Sequence[Any]) -> Sequence[Any]:
    """Return the configs of default mode for *kernel*, for which inductor *offered* some.

    Under max-autotune it offered more: then the heuristics are asked again.
    """
    meta = kernel.inductor_meta
    if not (meta.get("max_autotune") or meta.get("max_autotune_pointwise")):
        return offered
    return listed_by_inductor(kernel, max_autotune=False) or offered


def has_too_small_block(kernel: Any, config: Any) -> bool:
    """Return whether a split scan with *config* has more blocks than its workspace has room for.

    Inductor sizes the workspace by this least block, and its coordinate descent does not know.
    """
    if kernel.heuristic_type is not HeuristicType.SPLIT_SCAN:
        return False
    least = kernel.inductor_meta.get("min_split_scan_rblock", _LEAST_SPLIT_SCAN)
    return any(
        value < least for name, value in config.kwargs.items() if is_block(name) and name[0] == "R"
    )


def grid_of(kernel: Any, like: Any) -> list[Any]:
    """Return a grid of configs for *kernel* with the arguments of the config *like*.

    Blocks of 256 to 8192 elements (4096 with two sides), within the kernel's sizes, with 4 to 16
    elements a thread. A block of a persistent reduction holds whole rows. No grid for three sides,
    nor for configs that have other arguments than blocks.
    """
    names = [name for name in like.kwargs if is_block(name)]
    sizes = dict(kernel.size_hints or {})
    if len(names) != len(like.kwargs) or not sizes or len(names) > _MOST_SIDES:
        return []
    has_sides = len(names) == _MOST_SIDES
    row = _row_elements(names, sizes)
    least, most = _TILE_ELEMENTS if has_sides else _BLOCK_ELEMENTS
    least = min(least, math.prod(sizes.values()))
    thread = _PER_THREAD_OF_TILE if has_sides else _PER_THREAD
    spelled = [
        {**blocks, "num_warps": warps, "num_stages": 1}
        for blocks in _blocks(names, sizes, kernel.inductor_meta.get("reduction_hint"))
        if least <= (elements := math.prod(blocks.values()) * row) <= most
        for warps in _WARPS
        if thread[0] <= elements / (_WARP * warps) <= thread[1]
    ]
    return [config_from_dict(one) for one in spelled]


def staged(kernel: Any, config: Any) -> list[Any]:
    """Return *config* with more stages, for a reduction that loops; none for other kernels."""
    if kernel.heuristic_type is not HeuristicType.REDUCTION:
        return []
    named = {**config.kwargs, "num_warps": config.num_warps}
    return [config_from_dict({**named, "num_stages": stages}) for stages in _STAGES]


def _row_elements(names: list[str], sizes: Mapping[str, int]) -> int:
    """Return the elements of a row that a block holds whole: those of sizes without a block."""
    return math.prod(
        size
        for prefix, size in sizes.items()
        if prefix.startswith("r") and f"{prefix.upper()}BLOCK" not in names
    )


def _blocks(names: list[str], sizes: Mapping[str, int], hint: Any) -> Iterator[dict[str, int]]:
    is_outer = hint in (ReductionHint.OUTER, ReductionHint.OUTER_TINY)
    ranges = []
    for name in names:
        prefix = name.removesuffix("BLOCK")
        size = min(TRITON_MAX_BLOCK[prefix], sizes.get(prefix.lower(), 1))
        least, most = 1, size
        if name.startswith("R"):
            least, most = _OUTER_LOOP if is_outer else (_INNER_LOOP, size)
        elif is_outer:
            least = _SIDE
        ranges.append(_powers(min(least, size), min(most, size)))
    is_tile = len(names) > 1 and not any(name.startswith("R") for name in names)
    for values in itertools.product(*ranges):
        if not is_tile or all(value == 1 or value >= _SIDE for value in values):
            yield dict(zip(names, values, strict=True))


def _powers(least: int, most: int) -> list[int]:
    """Return the powers of two from *least* to *most*."""
    return [1 << power for power in range(most.bit_length()) if least <= 1 << power <= most]
