"""Torch 2.13: what differs from torch 2.12."""

from __future__ import annotations

from typing import Any

from warmup.inductor.versions.v2_12 import TemplateParams, fusion_score

__all__ = ["INTERNALS", "TemplateParams", "forget_config_hash", "fusion_score"]

# Checked in addition to `warmup.inductor.internals`.
INTERNALS = (
    "torch._inductor.template_heuristics.params:DictKernelTemplateParams",
    "torch._inductor.config:_hash_dirty_var",
    "torch._inductor.config:_get_dict_dirty_keys_var",
)


def forget_config_hash(module: Any) -> None:
    """Make *module* recompute its config hash and dict in this context."""
    module._hash_dirty_var.set(True)
    module._get_dict_dirty_keys_var.set(None)
