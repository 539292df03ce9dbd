"""Torch 2.15: what differs from the other supported minors."""

from __future__ import annotations

from typing import Any

from torch._inductor.heuristics.template.params import DictKernelTemplateParams as TemplateParams

__all__ = ["INTERNALS", "TemplateParams", "forget_config_hash", "fusion_score"]

# Checked in addition to `warmup.inductor.internals`.
INTERNALS = (
    "torch._inductor.heuristics.template.params:DictKernelTemplateParams",
    "torch._inductor.config:_hash_dirty_var",
    "torch._inductor.config:_get_dict_dirty_keys_var",
)


def forget_config_hash(module: Any) -> None:
    """Make *module* recompute its config hash and dict in this context."""
    module._hash_dirty_var.set(True)
    module._get_dict_dirty_keys_var.set(None)


def fusion_score(scheduler: Any, node1: Any, node2: Any, score: int) -> int:
    """Return *score*: the scheduler scores templates by the names of buffers itself."""
    del scheduler, node1, node2
    return score
