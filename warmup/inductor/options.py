"""Inductor options for the whole process.

Assigning ``config.x`` reaches only the assigning thread from torch 2.12 on (config overrides are
context variables, torch/utils/_config_module.py), so warmup changes the layer below: the default,
which every thread sees and every override of the caller still beats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.compiler.config as compiler_config
from torch._inductor import config as inductor_config

from warmup.errors import InductorChangedError
from warmup.inductor.patches import Patches
from warmup.inductor.versions import Version

OptionValue = bool | int | float | str | None


def apply_options(
    options: Mapping[str, OptionValue], patches: Patches, version: Version
) -> None:
    """Make *options* inductor's defaults in every thread until *patches* is restored.

    Raises:
        InductorChangedError: this torch has no such option.
    """
    for name, value in options.items():
        _set_default(inductor_config, name, value, patches, version)


def tag_caches(tag: str, patches: Patches, version: Version) -> None:
    """Put *tag* into the key of inductor's FX, AOTAutograd and Triton caches, in every thread.

    A tag that the caller had set stays in front, so that their separation of caches is kept.
    """
    before = compiler_config.cache_key_tag
    value = f"{before}+{tag}" if before else tag
    _set_default(compiler_config, "cache_key_tag", value, patches, version, over_environment=True)
    if compiler_config.cache_key_tag != value:  # the caller assigned a tag in this thread
        compiler_config.cache_key_tag = value

        def undo() -> None:
            compiler_config.cache_key_tag = before

        patches.on_restore(undo)


def option_value(name: str) -> Any:
    """Return the value of an inductor option as this thread sees it."""
    target: Any = inductor_config
    for part in name.split("."):
        target = getattr(target, part)
    return target


def tuning_is_on() -> bool:
    """Return whether this compile chooses by measuring.

    False inside subgraph bodies, which inductor lowers with max-autotune off through the same hooks
    (torch/_inductor/ir.py, SubgraphBuffer): those must pass through untouched.
    """
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def _set_default(
    module: Any,
    name: str,
    value: Any,
    patches: Patches,
    version: Version,
    *,
    over_environment: bool = False,
) -> None:
    entry = module._config.get(name)
    if entry is None:
        raise InductorChangedError(f"there is no option {module.__name__}.{name}")
    layer = "default"
    if over_environment and isinstance(entry.env_value_default, str):
        layer = "env_value_default"
    before = getattr(entry, layer)
    setattr(entry, layer, value)
    version.forget_config_hash(module)

    def undo() -> None:
        setattr(entry, layer, before)
        version.forget_config_hash(module)

    patches.on_restore(undo)
