"""Print what GEMM choices inductor asks for when models of the zoo are lowered for the stated H100.

    python cuda_zoo.py NAME...

The models, of transformers, have their serving sizes and no values: weights and inputs are fake
tensors, which timm's models cannot be made of. Each is traced on the CPU, since Python's indexing
would look for a GPU, and then moved. Attention is stood in for by an operation without a matmul, as
its kernels are no choice of inductor's. By model and bucket the keys that an attached empty table
missed are printed as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import fake_gpu
import torch
from torch import nn
from torchvision_anywhere import import_torchvision

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "benchmarks"))

from torch._subclasses.fake_tensor import FakeTensorMode
from zoo_models.entries import SERVED

from warmup.core.buckets import parse_buckets, parse_inputs
from warmup.models.loading import Inputs, load_model, make_inputs

import_torchvision()
OPTIONS = {"max_autotune_gemm_backends": "ATEN,TRITON"}
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def attend(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
    """Return something of the shape of an attention's output that depends on all three."""
    groups = query.shape[1] // value.shape[1]
    mean = (key + value).mean(2, keepdim=True).repeat_interleave(groups, 1)
    return query * mean


torch.nn.functional.scaled_dot_product_attention = attend

Case = tuple[str, nn.Module, Inputs]


def load(name: str) -> list[Case]:
    """Return the model with its inputs for each bucket, all fake."""
    entry, cases = SERVED[name], []
    with FakeTensorMode(allow_non_fake_inputs=True):
        loaded = load_model(entry.model)
        for bucket in parse_buckets(None, entry.dims):
            inputs = make_inputs(loaded, parse_inputs(entry.inputs), bucket, CPU, None)
            cases.append((f"{name}: {bucket}", loaded.module, inputs))
    return cases


cases = [case for name in sys.argv[1:] for case in load(name)]
fake_gpu.pretend()

from torch._inductor import config  # noqa: E402  after it is pretended
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.fx_passes.post_grad import post_grad_passes  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402
from torch.fx.passes.fake_tensor_prop import FakeTensorProp  # noqa: E402

from warmup.core.events import Emitter, Event  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.table.lookup import Lookup  # noqa: E402
from warmup.table.schema import OnMiss  # noqa: E402


def move(node: torch.fx.Node) -> None:
    """Let *node* make its tensors on the GPU."""

    def moved(value: Any) -> Any:
        return GPU if isinstance(value, torch.device) else value

    node.args = torch.fx.node.map_aggregate(node.args, moved)
    node.kwargs = torch.fx.node.map_aggregate(node.kwargs, moved)


def lower(module: nn.Module, inputs: Inputs) -> list[str]:
    """Return the keys that are asked for, in order."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    flat, spec = torch.utils._pytree.tree_flatten((inputs.args, inputs.kwargs))
    shapes, events = ShapeEnv(), list[Event]()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        weights, given = dict(zip(state, tensors, strict=False)), tensors[len(state) :]
        args, kwargs = torch.utils._pytree.tree_unflatten(given, spec)
        output = torch.func.functional_call(module, weights, args, kwargs)
        leaves = torch.utils._pytree.tree_leaves(output)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def like(device: torch.device) -> list[torch.Tensor]:
        tensors = [*state.values(), *flat]
        strided = torch.empty_strided
        return [strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in tensors]

    with torch.no_grad(), mode:
        graph = make_fx(call, decomposition_table=select_decomp_table())(*like(CPU))
        for node in graph.graph.nodes:
            move(node)
            if node.op == "get_attr":
                constant = getattr(graph, node.target)
                setattr(graph, node.target, torch.empty_like(constant, device=GPU))
        graph.recompile()
        on_gpu = like(GPU)
        FakeTensorProp(graph, mode).propagate(*on_gpu)
    lookup = Lookup({}, OnMiss("fallback"), Emitter([events.append]))
    attachment = connect().attach(lookup, OPTIONS, "test")
    settings = {"max_autotune_gemm": True, "fx_graph_cache": False, "compile_threads": 1}
    try:
        with V.set_fake_mode(mode), config.patch(settings):
            post_grad_passes(graph, is_inference=True)
            fake_gpu.generate(graph, on_gpu, mode, shapes)
    finally:
        attachment.detach()
    return sorted({str(event.fields["key"]) for event in events if "key" in event.fields})


asked = {name: lower(module, inputs) for name, module, inputs in cases}
sys.stdout.write("RESULT " + json.dumps(asked) + "\n")
