"""Torch 2.15: as torch 2.14 in all that differs between minors."""

from warmup.inductor.versions.v2_14 import (
    INTERNALS,
    TemplateParams,
    forget_config_hash,
    fusion_score,
)

__all__ = ["INTERNALS", "TemplateParams", "forget_config_hash", "fusion_score"]
