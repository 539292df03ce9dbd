"""Torch 2.11: what differs from the other supported minors."""

from __future__ import annotations

from typing import Any

from torch._inductor.template_heuristics.params import DictKernelTemplateParams as TemplateParams

__all__ = ["INTERNALS", "TemplateParams", "forget_config_hash", "fusion_score"]

# Checked in addition to `warmup.inductor.internals`.
INTERNALS = (
    "torch._inductor.template_heuristics.params:DictKernelTemplateParams",
    "torch._inductor.config:_is_dirty",
    "torch._inductor.scheduler:Scheduler.dep_size_hint(self, dep)",
)


def forget_config_hash(module: Any) -> None:
    """Make *module* recompute its config hash and dict."""
    module._is_dirty = True


def fusion_score(scheduler: Any, node1: Any, node2: Any, score: int) -> int:
    """Return the bytes that a template and *node2* share by the names of buffers, if *score* is 0.

    The scheduler compares index expressions, which differ behind a view: it finds no shared data
    where a template writes 2 dims and its reader has 3 (Scheduler.score_fusion_memory). From torch
    2.12 on it compares names itself.
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
