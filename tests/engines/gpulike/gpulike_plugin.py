"""A plugin that makes vLLM compile on a CPU as on a GPU: in pieces, with torch's linears.

On a CPU vLLM traces once and calls oneDNN, so that inductor has nothing to choose. With
``GPULIKE=1`` in the environment its checks of the platform leave the mode of compiling as it was,
its linears are those of torch, and inductor offers its C++ template for weights that are inputs.
"""

from __future__ import annotations

import os
from typing import Any

from choices_for_inputs import offer_templates_for_inputs


def register() -> None:
    """Change vLLM and inductor in this process, once."""
    if os.environ.get("GPULIKE") != "1":
        return
    import vllm._custom_ops
    from vllm.config import CompilationMode
    from vllm.platforms.cpu import CpuPlatform

    if hasattr(CpuPlatform, "gpulike"):
        return
    vllm._custom_ops._supports_onednn = False
    original = CpuPlatform.check_and_update_config.__func__

    def check(cls: Any, vllm_config: Any) -> None:
        compilation = vllm_config.compilation_config
        is_piecewise = compilation.mode == CompilationMode.VLLM_COMPILE
        wraps = compilation.ir_enable_torch_wrap
        original(cls, vllm_config)
        if is_piecewise:
            compilation.mode = CompilationMode.VLLM_COMPILE
            compilation.ir_enable_torch_wrap = wraps

    CpuPlatform.check_and_update_config = classmethod(check)
    CpuPlatform.gpulike = True
    offer_templates_for_inputs()
