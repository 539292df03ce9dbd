"""Print which rows a small Llama asks for in whole graphs, and with its layers compiled once.

    python cuda_forms.py LAYERS

Both forms are lowered for the stated H100, the layers of examples/llama_block.py between a norm and
a head. Compiled once, one layer is a graph, and the graph around the layers calls opaque ones.
Attention is stood in for by an operation without a matmul, as its kernels are no choice of
inductor's. By form the keys of GEMMs and of generated kernels are printed as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fake_gpu
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from llama_block import LlamaBlocks

HIDDEN, HEADS, KV_HEADS, FFN, SEQLEN, WORDS = 512, 8, 4, 1536, 256, 1024
OPTIONS = {"max_autotune_gemm_backends": "ATEN,TRITON"}


def attend(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
    """Return something of the shape of an attention's output that depends on all three."""
    groups = query.shape[1] // value.shape[1]
    return query * (key + value).mean(2, keepdim=True).repeat_interleave(groups, 1)


nn.functional.scaled_dot_product_attention = attend


class Model(nn.Module):
    """The layers, a norm and a head."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.blocks = LlamaBlocks(HIDDEN, HEADS, KV_HEADS, FFN, layers=layers)
        self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, WORDS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return out


model = Model(int(sys.argv[1]))
fake_gpu.pretend()

from torch._inductor import config  # noqa: E402  after it is pretended
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.fx_passes.post_grad import post_grad_passes  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.core.events import Emitter, Event  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.inductor.launch.kernels import read_kernel  # noqa: E402
from warmup.inductor.layers.opaque_call import (  # noqa: E402
    LayerProgram,
    TensorLayout,
    call_layer,
    define_op,
    name_of,
    tracing_program,
)
from warmup.models.shadow import shadow_of  # noqa: E402
from warmup.table.lookup import Lookup, OnMiss  # noqa: E402


def lower(module: nn.Module) -> tuple[set[str], set[str]]:
    """Return the keys of GEMMs and of generated kernels that *module* asks for in bf16."""
    shapes, events = ShapeEnv(), list[Event]()
    mode = FakeTensorMode(shape_env=shapes)
    names = [name for name, _ in module.named_parameters()]

    def call(*inputs: torch.Tensor) -> Any:
        weights = dict(zip(names, inputs, strict=False))
        return torch.func.functional_call(module, weights, (inputs[-1],))

    with torch.no_grad(), mode:
        like = {"dtype": torch.bfloat16, "device": "cuda"}
        inputs = [torch.empty(one.shape, **like) for one in module.parameters()]
        inputs.append(torch.empty(1, SEQLEN, HIDDEN, **like))
        graph = make_fx(call, decomposition_table=select_decomp_table())(*inputs)
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([events.append]))
    attachment = connect().attach(lookup, OPTIONS, "test")
    settings = {"max_autotune_gemm": True, "fx_graph_cache": False, "compile_threads": 1}
    try:
        with V.set_fake_mode(mode), config.patch(settings):
            post_grad_passes(graph, is_inference=True)
            code = fake_gpu.generate(graph, inputs, mode, shapes)
    finally:
        attachment.detach()
    read = [read_kernel(name, source) for name, source in fake_gpu.kernels_in(code)]
    kernels = {one[0].key for one in read if one is not None}
    assert len(read) == len([one for one in read if one is not None])
    return {str(event.fields["key"]) for event in events if "key" in event.fields}, kernels


def around(model: Model) -> nn.Module:
    """Return *model* with an opaque call for each of its layers."""
    layers = list(model.blocks.layers)
    layout = TensorLayout(
        (1, SEQLEN, HIDDEN), (SEQLEN * HIDDEN, HIDDEN, 1), torch.bfloat16, torch.device("cuda:0")
    )
    for _ in layers:
        program.inputs.append((layout,))
        program.outputs.append((layout,))

    def forward_of(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: call_layer([x], number, name_of((layout,)))[0]

    forwards = {layer: forward_of(number) for number, layer in enumerate(layers)}
    return shadow_of(model, forwards).model


def listed(forms: Sequence[tuple[set[str], set[str]]]) -> dict[str, list[str]]:
    """Return the keys of several graphs together."""
    gemms, kernels = (set().union(*each) for each in zip(*forms, strict=True))
    return {"gemm": sorted(gemms), "launch": sorted(kernels)}


define_op()
program = LayerProgram()
with tracing_program(program):
    once = listed([lower(model.blocks.layers[0]), lower(around(model))])
sys.stdout.write(json.dumps({"whole": listed([lower(model)]), "once": once}) + "\n")
