"""Torch 2.12: what differs from the other supported minors."""

from __future__ import annotations

from typing import Any

from torch._inductor.template_heuristics.params import DictKernelTemplateParams as TemplateParams

__all__ = ["INTERNALS", "TemplateParams", "forget_config_hash", "fusion_score"]

# Checked in addition to `warmup.inductor.internals`.
INTERNALS = (
    "torch._inductor.template_heuristics.params:DictKernelTemplateParams",
    "torch._inductor.config:_is_dirty",
)


def forget_config_hash(module: Any) -> None:
    """Make *module* recompute its config hash and dict."""
    module._is_dirty = True


def fusion_score(scheduler: Any, node1: Any, node2: Any, score: int) -> int:
    """Return *score*: the scheduler scores templates by the names of buffers itself."""
    del scheduler, node1, node2
    return score
