"""Lower small models for the stated H100, cut the regions of their GEMMs, and lower those again.

    echo '{"case": "gelu"}' | python cuda_regions.py

The result has for each key its region's operators and outputs, and the keys that are asked for when
the region is lowered alone. With ``ranged`` the number of rows is a range, 33 to 64, and the guards
that cutting put on it are told. A case with ``pads`` is about the questions of inductor's pad_mm
pass, for unaligned GEMMs: what the model asks for as it is and with everything padded, and for each
question the region and what that asks for both ways; such a case may be a pad key, whose model is
what a build makes of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import fake_gpu
import h100  # before inductor looks for a device
import torch
import torch.nn.functional as F  # noqa: N812  as everybody does
from h100 import GEMM_OPTIONS, Case
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V

from warmup.core.errors import MissReason
from warmup.core.events import Emitter, Event, EventName
from warmup.core.rows import Winner
from warmup.core.trial import Region, TensorSpec, Tuned
from warmup.inductor.gemm.key import current_node
from warmup.inductor.gemm.regions import module_of, region_of
from warmup.keys.kind import Problem
from warmup.keys.pad import AS_IS, PADDED, PadProblem
from warmup.keys.question import Question, RegionQuestion
from warmup.keys.registry import kind_of
from warmup.models.rebuilt import make_pad_module, size_of
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss

ROWS, LEAST = 64, 33


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


def linear(x: Any, w: Any) -> Any:
    return F.linear(x, w)


def gated_residual(x: Any, gate: Any, up: Any, down: Any, bias: Any) -> Any:
    return x + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up, bias), down)


def conv1d(x: Any, w: Any, b: Any, scale: Any) -> Any:
    normed = F.layer_norm(x, (x.shape[-1],), scale)
    y = torch.addmm(b, normed.view(-1, x.shape[-1]), w)
    return F.gelu(y, approximate="tanh").view(*x.shape[:-1], -1)


def shared(x: Any, scale: Any, q: Any, k: Any) -> Any:
    normed = F.rms_norm(x, (x.shape[-1],), scale)
    return F.linear(normed, q), torch.relu(F.linear(normed, k))


def batched(x: Any, y: Any) -> Any:
    return torch.bmm(x * 2, y).float()


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
    # With sizes that inductor may pad.
    "linear": (linear, ((560, 3420), (1280, 3420))),
    "unaligned gate": (
        gated_residual,
        ((560, 1280), (3420, 1280), (3420, 1280), (1280, 3420), (3420,)),
    ),
    "conv1d": (conv1d, ((4, 140, 1602), (1602, 772), (772,), (1602,))),
    "shared": (shared, ((2, 280, 1284), (1284,), (1284, 1284), (772, 1284))),
    "batched": (batched, ((4, 560, 1284), (4, 1284, 772))),
}
# The dtypes of inputs that are not bf16, by position.
DTYPES = {
    "quantized": {1: torch.int8},
    "fp8": {i: torch.float32 if i % 2 == 0 else FP8 for i in range(1, 7)},
    "int8": {0: torch.int8, 1: torch.float32, 2: torch.int8, 3: torch.float32},
}

Function = Callable[..., Any]
Specs = Collection[TensorSpec]


def written(name: str, rows: Any = ROWS) -> tuple[Function, Specs]:
    """Return the function of a case in `CASES`, and its arguments, with *rows* for `ROWS`."""
    function, shapes = CASES[name]
    specs = []
    for number, shape in enumerate(shapes):
        dtype = DTYPES.get(name, {}).get(number, torch.bfloat16)
        sizes = (rows if shape[0] == ROWS else shape[0], *shape[1:])
        strides = torch.empty(shape, device="meta").stride()
        specs.append(TensorSpec(sizes, strides, 0, str(dtype).removeprefix("torch.")))
    return function, specs


def rebuilt(key: str) -> tuple[Function, Specs]:
    """Return the module that a build makes of a pad key, and its arguments."""
    module, tensors = make_pad_module(PadProblem.of_key(key))
    return module, [
        TensorSpec(
            tuple(map(size_of, one.sizes)), one.strides, 0, str(one.dtype).removeprefix("torch.")
        )
        for one in tensors.values()
    ]


# -- regions of products -----------------------------------------------------------------------


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


def cut(case: Case) -> dict[str, Any]:
    mode = h100.fakes()
    rows: Any = ROWS
    if case.get("ranged"):
        rows = fake_gpu.make_range(mode.shape_env, LEAST, ROWS, hint=ROWS)
    cut_out = regions_of(*written(case["case"], rows), mode)
    found: dict[str, Any] = {"guards": list(guards), "regions": []}
    for key, region in cut_out.items():
        told: dict[str, Any] = {"key": key, "steps": None}
        if region is not None:
            module = module_of(region, torch.device("cuda:0"))
            told |= {
                "steps": [step.target for step in region.steps],
                "fills": [one.fill for one in region.inputs],
                "outputs": [region.steps[i].target for i in region.outputs],
                "again": list(regions_of(module, region.inputs, h100.fakes())),
            }
        found["regions"].append(told)
    return found


def regions_of(function: Function, specs: Specs, mode: Any) -> dict[str, Region | None]:
    """Return the regions of *function*, by the keys of its GEMMs."""
    inputs = h100.like([*specs], mode)
    graph = h100.trace(function, inputs, mode)
    regions.clear()
    guards.clear()
    with h100.attached(Noting({}, OnMiss.FALLBACK, Emitter([])), GEMM_OPTIONS):
        h100.run_post_grad(graph, mode)
        h100.lower(graph, inputs, mode)
    return dict(regions)


# -- regions of unaligned products, padded or not ----------------------------------------------


@dataclass
class Asking:
    """Keeps pad questions, and decides nothing; what it would run has no device."""

    questions: list[RegionQuestion] = field(default_factory=list)

    def measure(self, question: Question) -> Tuned | None:
        assert isinstance(question, RegionQuestion), question.problem.key
        self.questions.append(question)
        return None

    def close(self) -> None:
        pass


class Deciding(Lookup):
    """Answers every pad key, or those of *only*, with one way; notes what else is asked for."""

    way: Winner = AS_IS
    only: Collection[str] | None = None
    asked: set[str]

    def find(self, problem: Problem) -> Winner | MissReason:
        key = problem.key
        if kind_of(key).name == "pad":
            return self.way if self.only is None or key in self.only else AS_IS
        if kind_of(key).name == "gemm":
            self.asked.add(key)
        return super().find(problem)


def questions_of(function: Function, specs: Specs) -> list[RegionQuestion]:
    """Return the pad questions of *function*, in the order in which they are asked."""
    mode, tuner = h100.fakes(), Asking()
    graph = h100.trace(torch.func.functionalize(function), h100.like([*specs], mode), mode)
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([]), tuner=tuner)
    with h100.attached(lookup, GEMM_OPTIONS), h100.without_memory(), V.set_fake_mode(mode):
        joint_graph_passes(graph, torch.device("cuda"))
    return tuner.questions


def decide(
    function: Function, specs: Specs, way: Winner, only: Collection[str] | None = None
) -> dict[str, list[str]]:
    """Return the GEMM keys of *function* padded as *way* says, and the pad keys that were hit."""
    mode = h100.fakes()
    inputs = h100.like([*specs], mode)
    graph = h100.trace(torch.func.functionalize(function), inputs, mode)
    hits: list[str] = []

    def note(event: Event) -> None:
        if event.name is EventName.HIT:
            hits.append(f"{event.fields['key']} -> {event.fields['winner']}")

    answers = Deciding({}, OnMiss.FALLBACK, Emitter([note]))
    answers.way, answers.only, answers.asked = way, only, set()
    with h100.attached(answers, GEMM_OPTIONS):
        with h100.without_memory(), V.set_fake_mode(mode):
            graph = joint_graph_passes(graph, torch.device("cuda")) or graph
        h100.run_post_grad(graph, mode)
        h100.lower(graph, inputs, mode)
    return {"gemms": sorted(answers.asked), "hits": sorted(set(hits))}


def pad_both_ways(case: Case) -> dict[str, Any]:
    name, ways = case["case"], (AS_IS, PADDED)
    function, specs = rebuilt(name) if name.startswith("pad ") else written(name)
    questions = []
    for question in questions_of(function, specs):
        found: dict[str, Any] = {"key": question.key, "reason": question.reason, "steps": None}
        if region := question.region:
            module, keys = module_of(region, torch.device("cuda:0")), question.keys_in_region
            found |= {
                "steps": [step.target for step in region.steps],
                "outputs": [region.steps[i].target for i in region.outputs],
                "keys": sorted(keys),
                **{way.uid: decide(module, region.inputs, way, keys) for way in ways},
            }
        questions.append(found)
    whole = {way.uid: decide(function, specs, way)["gemms"] for way in ways}
    return {"questions": questions, "whole": whole}


def _sliced(tensor: Any, index: Any) -> Any:
    """Slice as the pass does, by the dispatcher alone: indexing would look for the device."""
    for dim, part in enumerate(index):
        if part != slice(None):
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, 0, part.stop)
    return tensor


if __name__ == "__main__":
    h100.without_device_patterns()
    tensor: Any = torch.Tensor
    tensor.__getitem__ = _sliced
    h100.answer_each(lambda case: pad_both_ways(case) if case.get("pads") else cut(case))
