"""What differs between the supported minors of torch: an entry of VERSIONS for each.

An entry that does not hold fails when `warmup.inductor.internals` checks its names.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmup.core.errors import UnsupportedTorchError


def _score_of_scheduler(_scheduler: Any, _node1: Any, _node2: Any, score: int) -> int:
    return score


def _score_by_name(scheduler: Any, node1: Any, node2: Any, score: int) -> int:
    """Return the bytes that a template and *node2* share by the names of buffers, if *score* is 0.

    Torch 2.11 compares index expressions, which differ behind a view: it finds no shared data where
    a template writes 2 dims and its reader has 3 (Scheduler.score_fusion_memory). Later minors
    compare names themselves.
    """
    if score:
        return score
    ours, others = (one.read_writes.reads | one.read_writes.writes for one in (node1, node2))
    return sum(
        max(scheduler.dep_size_hint(our), scheduler.dep_size_hint(other))
        for our in ours
        for other in others
        if our.name == other.name
    )


def _set_dirty(module: Any) -> None:
    module._is_dirty = True


def _set_dirty_in_context(module: Any) -> None:
    module._hash_dirty_var.set(True)
    module._get_dict_dirty_keys_var.set(None)


@dataclass(frozen=True, slots=True)
class Version:
    """What one minor of torch has; ``internals`` are checked beside those of every minor.

    ``forget_config_hash`` makes a config module recompute its hash and dict after a default was
    changed. ``fusion_score`` returns the bytes that a template and another node share, of the
    scheduler, both nodes and the scheduler's own score.
    """

    params: str  # the class of a template's params
    internals: tuple[str, ...]
    forget_config_hash: Callable[[Any], None]
    fusion_score: Callable[[Any, Any, Any, int], int] = _score_of_scheduler

    def has(self, internal: str) -> bool:
        """Say whether *internal*, without parameters, is one of ``internals``."""
        return any(listed.partition("(")[0] == internal for listed in self.internals)

    def template_params(self, kwargs: Mapping[str, Any]) -> Any:
        """Return *kwargs* as the params of a template."""
        return pkgutil.resolve_name(self.params)(dict(kwargs))


_PARAMS: Final = "torch._inductor.template_heuristics.params:DictKernelTemplateParams"
_PARAMS_2_14: Final = "torch._inductor.heuristics.template.params:DictKernelTemplateParams"
_FLAG: Final = ("torch._inductor.config:_is_dirty",)
_VARIABLES: Final = (
    "torch._inductor.config:_hash_dirty_var",
    "torch._inductor.config:_get_dict_dirty_keys_var",
)
CHOICES_DOOR: Final = (  # register and unregister choices, which torch composes
    "torch._inductor.choices:register_inductor_choices",
    "torch._inductor.choices:unregister_inductor_choices",
)
READS_CAPTURE: Final = "torch._precompile:_read_artifact"
_CAPTURES: Final = (READS_CAPTURE, "torch._precompile:_build_python_source")
PLUGINS: Final = "torch._inductor.runtime.triton_heuristics:get_caching_autotuner_plugins"
_SIZE_HINT: Final = "torch._inductor.scheduler:Scheduler.dep_size_hint(self, dep)"
_OF_2_14: Final = (_PARAMS_2_14, *_VARIABLES, PLUGINS)
_OF_2_15: Final = (
    *_OF_2_14,
    *_CAPTURES,
    f"{CHOICES_DOOR[0]}(key,factory)",
    f"{CHOICES_DOOR[1]}(key)",
)
VERSIONS: Final[Mapping[tuple[int, int], Version]] = {
    (2, 11): Version(_PARAMS, (_PARAMS, *_FLAG, _SIZE_HINT), _set_dirty, _score_by_name),
    (2, 12): Version(_PARAMS, (_PARAMS, *_FLAG), _set_dirty),
    (2, 13): Version(_PARAMS, (_PARAMS, *_VARIABLES), _set_dirty_in_context),
    (2, 14): Version(_PARAMS_2_14, _OF_2_14, _set_dirty_in_context),
    (2, 15): Version(_PARAMS_2_14, _OF_2_15, _set_dirty_in_context),
}


def version_for(torch_version: str) -> Version:
    """Return what *torch_version*, such as ``2.13.0+cpu``, has.

    Raises:
        UnsupportedTorchError: *torch_version* is outside the supported range.
    """
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    version = VERSIONS.get((int(match[1]), int(match[2]))) if match else None
    if version is None:
        low, high = min(VERSIONS), max(VERSIONS)
        raise UnsupportedTorchError(torch_version, f"{low[0]}.{low[1]} to {high[0]}.{high[1]}")
    return version
