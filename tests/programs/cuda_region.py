"""Compile the region of a GEMM in each way for the stated H100; print what was compiled, as JSON.

    python cuda_region.py

`RegionCompiler`, the hooks, inductor, Triton and ptxas are the real ones. Stated are the device,
the loaded kernels (32 registers, no spills) and how a module becomes a graph: what torch.compile
would capture is traced with fake tensors here. ``lowered`` counts the graphs that were lowered.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cuda_fusion  # first: it pretends the device before inductor looks for one
import fake_gpu
import torch
from torch._inductor import config
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from warmup.core.errors import BuildError
from warmup.core.method import Method
from warmup.core.rows import Family, Winner
from warmup.core.trial import Candidate, TensorSpec, Trial
from warmup.inductor.gemm.regions import region_of
from warmup.tuning import worker as fused

NOTHING = TensorSpec((), (), 0, "float32")
LOWERED: list[None] = []  # an item for each graph that was lowered


class FakeSets:
    """The inputs of a region, without memory."""

    count = 1

    def __init__(self, trial: Trial, mode: FakeTensorMode) -> None:
        with mode:
            self.inputs = [
                torch.empty_strided(
                    one.sizes, one.strides, dtype=getattr(torch, one.dtype), device="cuda:0"
                )
                for one in trial.operands
            ]

    def views(self, _number: int) -> list[Any]:
        return self.inputs


def compile_traced(module: Any) -> Callable[..., Any]:
    """Return the compile of *module* at its first call; nothing is launched."""
    is_compiled = False

    def call(*inputs: Any) -> None:
        nonlocal is_compiled
        if is_compiled:
            return
        is_compiled = True
        LOWERED.append(None)
        mode = inputs[0].fake_mode
        with mode:
            graph = make_fx(module, decomposition_table=select_decomp_table())(*inputs)
        graph.graph.eliminate_dead_code()
        settings = {"max_autotune_gemm": True, "fx_graph_cache": False, "compile_threads": 1}
        with V.set_fake_mode(mode), config.patch({**settings, **cuda_fusion.OPTIONS}):
            post_grad_passes(graph, is_inference=True)
            cuda_fusion.make_outputs_visible(graph)
            lowering = GraphLowering(
                graph, example_inputs=inputs, is_inference=True, shape_env=mode.shape_env
            )
            with V.set_graph_handler(lowering), V.set_debug_handler(DebugContext()):
                lowering.run(*inputs)
                lowering.compile_to_module()

    return call


def compile_ways(
    case: str,
    number: int,
    ways: list[bool | None],
    known: bool | None = None,
    *,
    is_ahead: bool = False,
) -> list[dict[str, Any]]:
    """Compile the region of GEMM *number* of *case* in *ways*; *known* decides about the first.

    ``None`` is the library's kernel, ``True`` a fused template. With *is_ahead* all are compiled
    ahead, as the child process of a build does.
    """
    shape = {"case": case, "batch": 4, "seq": 256}
    graph, _, _, _ = cuda_fusion.graph_of(shape)
    targets = torch.ops.aten.mm.default, torch.ops.aten.addmm.default
    gemms = [node for node in graph.graph.nodes if node.target in targets]
    rows = cuda_fusion.templates(shape)
    key, tile = list(rows.items())[number]
    region = region_of(gemms[number], (), has_epilogue=True)
    assert region is not None
    first, other = next(iter(rows.items()))
    trial = Trial(
        key=key,
        op=key.split()[0],
        device="cuda:0",
        operands=region.inputs,
        views=(),
        out=NOTHING,
        candidates=(),
        library=Winner(Family.EXTERN, f"aten::{key.split()[0]}"),
        method=Method(),
        region=region,
        options=cuda_fusion.OPTIONS,
        known=() if known is None else ((first, replace(other, fused=known)),),
    )
    sets = FakeSets(trial, FakeTensorMode(shape_env=ShapeEnv()))
    compiler = fused.RegionCompiler(trial, torch.device("cuda:0"))
    winners = [trial.library if way is None else replace(tile, fused=way) for way in ways]
    LOWERED.clear()
    if is_ahead:
        compiler.compile_ahead(winners, lambda: sets, lambda *_: None)
    found = []
    for winner in winners:
        error = ""
        try:
            compiler.make_call(Candidate(winner), sets)
        except BuildError as refused:
            error = str(refused)
        kernels = compiler.kernels_of(winner)
        assert kernels is not None, error
        found.append(
            {
                "count": kernels.count,
                "spills": kernels.spills,
                "registers": kernels.registers,
                "is_as_decided": kernels.is_as_decided,
                "error": error,
                "lowered": len(LOWERED),
            }
        )
    compiler.close()
    return found


if __name__ == "__main__":
    fake_gpu.pretend_launches(lambda _: 1.0, lambda _: False)
    fused.compile_model = compile_traced
    if not hasattr(torch._C, "_cuda_getCurrentRawStream"):  # a torch for CPUs lacks it
        torch._C._cuda_getCurrentRawStream = lambda _: 0
    both = [None, True, False]
    result = {
        "gelu": compile_ways("gelu", 0, both),
        "gelu, ahead": compile_ways("gelu", 0, both, is_ahead=True),
        "residual, then a norm": compile_ways("residual, then a norm", 0, both),
        "gated": compile_ways("gated", 1, both, known=True),
    }
    sys.stdout.write(json.dumps(result) + "\n")
