"""`winner_of` and `make_config`: from a Triton launch config to a `Winner`, and back with checks.

Inductor drops the bounds checks of a kernel whose sizes are multiples of its largest block
(codegen/triton.py, TRITON_MAX_BLOCK). A larger block, or a block that is no power of two, would
read and write out of bounds: such a config is refused, whatever its source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from torch._inductor.runtime.hints import TRITON_MAX_BLOCK
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
