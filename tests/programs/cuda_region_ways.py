"""Compile the region of a GEMM in each way for the stated H100; print what was compiled.

    echo '{"case": "gelu", "number": 0}' | python cuda_region_ways.py

`RegionCompiler`, the hooks, inductor, Triton and ptxas are the real ones. Stated are the device,
the loaded kernels (32 registers, no spills) and how a module becomes a graph: what torch.compile
would capture is traced with fake tensors here. The ways are the library's kernel, and a template
fused and not fused. ``known`` decides about the first GEMM of the case, and with ``is_ahead`` all
are compiled ahead, as the child process of a build does. ``lowered`` counts lowered graphs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cuda_fusion  # first: it pretends the device before inductor looks for one
import fake_gpu
import h100
import torch
from h100 import Case

from warmup.core.errors import BuildError
from warmup.core.rows import Family, Method, Winner
from warmup.core.trial import Candidate, TensorSpec, Trial
from warmup.inductor.cached_graphs import VariantGraphs
from warmup.inductor.caches import empty_caches
from warmup.inductor.gemm.regions import region_of
from warmup.tuning import worker

NOTHING = TensorSpec((), (), 0, "float32")
LOWERED: list[None] = []  # an item for each graph that was lowered


class FakeSets:
    """The inputs of a region that is called: nothing is launched."""

    count = 1

    def views(self, _number: int) -> list[Any]:
        return []


class TracedGraphs(VariantGraphs):
    """Graphs of a module that is traced with fake tensors here; nothing is launched."""

    def __init__(self, module: Any, *args: Any) -> None:
        super().__init__(module, *args)
        self.module = module

    def compile(self, inputs: Any) -> None:
        mode, options = inputs[0].fake_mode, cuda_fusion.OPTIONS
        graph = h100.trace(self.module, inputs, mode)
        h100.run_post_grad(graph, mode, **options)
        h100.show_outputs(graph)

        def lower() -> None:
            LOWERED.append(None)
            h100.lower(graph, inputs, mode, lambda made: made.compile_to_module(), **options)

        self.compile_each(lower)

    def call(self, name: Any, inputs: Any) -> None:
        pass


def compile_ways(case: Case) -> list[dict[str, Any]]:
    """Compile the region of GEMM ``number`` of the case in each way."""
    shape = {"case": case["case"], "batch": 4, "seq": 256}
    graph, _, _ = cuda_fusion.graph_of(shape)
    targets = torch.ops.aten.mm.default, torch.ops.aten.addmm.default
    gemms = [node for node in graph.graph.nodes if node.target in targets]
    rows = cuda_fusion.templates(shape)
    key, tile = list(rows.items())[case["number"]]
    region = region_of(gemms[case["number"]], (), has_epilogue=True)
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
        known=((first, replace(other, fused=case["known"])),) if "known" in case else (),
    )
    sets = FakeSets()
    compiler = worker.RegionCompiler(trial, torch.device("cuda:0"))
    winners = [trial.library, replace(tile, fused=True), replace(tile, fused=False)]
    LOWERED.clear()
    if case.get("is_ahead"):
        compiler.compile_ahead(winners)
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
    return found


def answer(case: Case) -> list[dict[str, Any]]:
    with empty_caches():
        return compile_ways(case)


if __name__ == "__main__":
    fake_gpu.pretend_launches(lambda _: 1.0, lambda _: False)
    worker.VariantGraphs = TracedGraphs
    fake = worker.RegionCompiler
    fake._make_inputs = lambda self: h100.like(self.trial.operands, h100.fakes())
    if not hasattr(torch._C, "_cuda_getCurrentRawStream"):  # a torch for CPUs lacks it
        torch._C._cuda_getCurrentRawStream = lambda _: 0
    h100.answer_each(answer)
