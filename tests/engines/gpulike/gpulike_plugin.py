"""A plugin that makes vLLM compile on a CPU as on a GPU: in pieces, with torch's linears.

On a CPU vLLM traces once and calls oneDNN, so that inductor has nothing to choose. With
``GPULIKE=1`` in the environment its checks of the platform leave the mode of compiling as it was,
its linears are those of torch, inductor offers its C++ template for weights that are inputs, and
the quantized operations that one of its passes over graphs names have their names.
"""

from __future__ import annotations

import os
from typing import Any, Final

from choices_for_inputs import offer_templates_for_inputs

_ONLY_ON_GPUS: Final = (
    "fused_add_rms_norm_static_fp8_quant",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_static_fp8_quant",
    "silu_and_mul_quant",
    "fused_qk_norm_rope",
)
_LIBRARIES: Final[list[Any]] = []


def register() -> None:
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
    _define_names()
    offer_templates_for_inputs()


def _define_names() -> None:
    """Define what vLLM's pass FixFunctionalization compares the nodes of a graph with."""
    # A graph of several ranks has such nodes, and the operations are in vLLM's build for GPUs
    # alone.
    import torch

    library = torch.library.Library("_C", "FRAGMENT")
    for name in _ONLY_ON_GPUS:
        if not hasattr(torch.ops._C, name):
            library.define(f"{name}() -> ()")
    _LIBRARIES.append(library)  # which takes its definitions back when nobody holds it
