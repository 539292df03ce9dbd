"""Lower small models for the stated H100, cut the regions of their GEMMs, and lower those again.

    python region_lowering.py CASE...

Prints one JSON object: for each case its regions' operators and outputs, the key in the model and
the key asked for when the region is lowered alone. With ``ranged`` behind its name a case has a
range, 33 to 64, for its number of rows, and the guards that cutting put on it are told.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import fake_gpu
import torch
import torch.nn.functional as F  # noqa: N812  as everybody does

fake_gpu.pretend()

from torch._inductor import config  # noqa: E402  after the device is pretended
from torch._inductor.debug import DebugContext  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.fx_passes.post_grad import post_grad_passes  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.core.errors import MissReason  # noqa: E402
from warmup.core.events import Emitter  # noqa: E402
from warmup.core.rows import Winner  # noqa: E402
from warmup.core.trial import Region  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.inductor.gemm.key import current_node  # noqa: E402
from warmup.inductor.gemm.regions import module_of, region_of  # noqa: E402
from warmup.keys.kind import Problem  # noqa: E402
from warmup.table.lookup import Lookup  # noqa: E402
from warmup.table.schema import OnMiss  # noqa: E402

ROWS, LEAST = 64, 33
OPTIONS = {"max_autotune_gemm_backends": "ATEN,TRITON"}


def gelu(x: Any, w: Any, bias: Any) -> Any:
    return F.gelu(torch.addmm(bias, x, w), approximate="tanh")


def gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return (F.silu(x @ gate) * (x @ up)) @ down


def gelu_gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
    y = (x @ gate).float()
    gated = 0.5 * y * (1.0 + torch.tanh(0.79788456 * (y + 0.044715 * torch.pow(y, 3))))
    return (gated.to(x.dtype) * (x @ up)) @ down


def attention(x: Any, query: Any, key: Any, value: Any, bias: Any) -> Any:
    """Attention in float32 with a bias, of 16 heads of 16 features, as torch decomposes it."""

    def heads(weight: Any) -> Any:
        return (x @ weight).view(ROWS, 16, 16).transpose(0, 1).float()

    scores = torch.bmm(heads(query), heads(key).transpose(1, 2)) + bias
    exponents = torch.exp(scores - scores.amax(-1, keepdim=True))
    shares = exponents / exponents.sum(-1, keepdim=True)
    like = {"dtype": shares.dtype, "layout": torch.strided, "device": shares.device}
    masked = torch.ops.aten.full.default([1], 0.0, **like, pin_memory=False)
    shares = torch.where(torch.any(scores != float("-inf"), -1, keepdim=True), shares, masked)
    return torch.bmm(shares, heads(value)).transpose(0, 1).reshape(ROWS, 256).to(x.dtype)


def residual(x: Any, w: Any, stream: Any, weight: Any, after: Any) -> Any:
    stream = stream + x @ w
    normed = F.rms_norm(stream.float(), (stream.shape[-1],), weight.float()).to(stream.dtype)
    return stream + normed @ after


def whole(x: Any, w: Any) -> Any:
    return x @ w


def quantized(x: Any, w: Any) -> Any:
    return x @ w.to(x.dtype)


def fp8(x: Any, *weights: Any) -> Any:
    gate, of_gate, up, of_up, down, of_down = weights

    def multiply(rows: Any, weight: Any, of_weight: Any) -> Any:
        of_rows = rows.abs().amax(-1, keepdim=True).float() / 448
        narrow = (rows.float() / of_rows).clamp(-448, 448).to(FP8)
        return torch._scaled_mm(narrow, weight.t(), of_rows, of_weight, out_dtype=torch.bfloat16)

    return multiply(F.silu(multiply(x, gate, of_gate)) * multiply(x, up, of_up), down, of_down)


def int8(x: Any, of_x: Any, w: Any, of_w: Any) -> Any:
    return F.silu((torch._int_mm(x, w.t()) * of_x * of_w).to(torch.bfloat16))


FP8 = torch.float8_e4m3fn
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "gelu": (gelu, ((64, 256), (256, 512), (512,))),
    "gated": (gated, ((64, 256), (256, 512), (256, 512), (512, 256))),
    "gelu_gated": (gelu_gated, ((64, 256), (256, 512), (256, 512), (512, 256))),
    "attention": (attention, ((64, 256), *((256, 256),) * 3, (64, 64))),
    "residual": (residual, ((64, 512), (512, 256), (64, 256), (256,), (256, 256))),
    "whole": (whole, ((64, 256), (256, 512))),
    "quantized": (quantized, ((64, 256), (256, 512))),
    "fp8": (fp8, ((64, 256), *((512, 256), (1, 512)) * 2, (256, 512), (1, 256))),
    "int8": (int8, ((64, 256), (64, 1), (512, 256), (512,))),
}
# The dtypes of inputs that are not bf16, by position.
DTYPES = {
    "quantized": {1: torch.int8},
    "fp8": {i: torch.float32 if i % 2 == 0 else FP8 for i in range(1, 7)},
    "int8": {0: torch.int8, 1: torch.float32, 2: torch.int8, 3: torch.float32},
}


class Noting(Lookup):
    """Has no rows, and cuts a region at every GEMM that is asked for."""

    def find(self, problem: Problem) -> Winner | MissReason:
        key = problem.key
        node = current_node()
        if node is not None and key not in regions:
            shapes = V.graph.sizevars.shape_env
            before = len(shapes.guards)
            regions[key] = region_of(node, (), has_epilogue="epilogue=none" not in key)
            guards.extend(str(guard.expr) for guard in shapes.guards[before:])
        return super().find(problem)


regions: dict[str, Region | None] = {}
guards: list[str] = []


def lower(
    function: Callable[..., Any], sizes: Any, dtypes: Any, *, ranged: bool = False
) -> dict[str, Region | None]:
    """Return the regions of *function*, by the keys it asks for."""
    shapes = ShapeEnv()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)
    rows = fake_gpu.make_range(shapes, LEAST, ROWS, hint=ROWS) if ranged else ROWS
    with mode:
        inputs = [
            torch.empty_strided(
                (rows if size[0] == ROWS else size[0], *size[1:]),
                strides,
                dtype=dtype,
                device="cuda:0",
            )
            for (size, strides), dtype in zip(sizes, dtypes, strict=True)
        ]
        graph = make_fx(function, decomposition_table=select_decomp_table())(*inputs)
        graph.graph.eliminate_dead_code()
    settings = {"max_autotune_gemm": True, "fx_graph_cache": False, "compile_threads": 1}
    regions.clear()
    guards.clear()
    answers = Noting({}, OnMiss.FALLBACK, Emitter([]))
    attachment = connect().attach(answers, OPTIONS, "test")
    try:
        with V.set_fake_mode(mode), config.patch(settings):
            post_grad_passes(graph, is_inference=True)
            lowering = GraphLowering(
                graph, example_inputs=inputs, is_inference=True, shape_env=shapes
            )
            with V.set_graph_handler(lowering), V.set_debug_handler(DebugContext()):
                lowering.run(*inputs)
    finally:
        attachment.detach()
    return dict(regions)


def run(name: str) -> list[dict[str, Any]]:
    name, _, word = name.partition(" ")
    function, shapes = CASES[name]
    dtypes = [DTYPES.get(name, {}).get(i, torch.bfloat16) for i in range(len(shapes))]
    sizes = [(shape, torch.empty(shape, device="meta").stride()) for shape in shapes]
    found = []
    cut = lower(function, sizes, dtypes, ranged=bool(word))
    guarded = list(guards)
    for key, region in cut.items():
        if region is None:
            found.append({"key": key, "steps": None, "guards": guarded})
            continue
        module = module_of(region, torch.device("cuda:0"))
        specs = [(one.sizes, one.strides) for one in region.inputs]
        again = lower(module, specs, [getattr(torch, one.dtype) for one in region.inputs])
        found.append(
            {
                "key": key,
                "steps": [step.target for step in region.steps],
                "inputs": [{"dtype": one.dtype, "fill": one.fill} for one in region.inputs],
                "outputs": [region.steps[i].target for i in region.outputs],
                "again": list(again),
                "guards": guarded,
            }
        )
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: run(name) for name in sys.argv[1:]}) + "\n")
