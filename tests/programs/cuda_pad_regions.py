"""Cut the regions of unaligned GEMMs on the stated H100, and lower them both ways.

    python cuda_pad_regions.py CASE...

Prints one JSON object: for each case what its model asks for as it is and with everything padded,
and for each of its pad questions the region and what that asks for both ways. A case is a name, or
a pad key: then its model is what a build makes of the key.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import fake_gpu
import torch
import torch.nn.functional as F  # noqa: N812  as everybody does

fake_gpu.pretend()

from torch._inductor import config  # noqa: E402  after the device is pretended
from torch._inductor.debug import DebugContext  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.fx_passes import fuse_attention, misc_patterns  # noqa: E402
from torch._inductor.fx_passes.joint_graph import joint_graph_passes  # noqa: E402
from torch._inductor.fx_passes.post_grad import post_grad_passes  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.core.errors import MissReason  # noqa: E402
from warmup.core.events import Emitter, Event, EventName  # noqa: E402
from warmup.core.rows import Evidence, Winner  # noqa: E402
from warmup.core.trial import Region, TensorSpec, Tuned  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.inductor.gemm.regions import module_of  # noqa: E402
from warmup.keys.kind import Problem  # noqa: E402
from warmup.keys.pad import (  # noqa: E402
    AS_IS,
    PADDED,
    PadProblem,
)
from warmup.keys.question import Question, RegionQuestion  # noqa: E402
from warmup.keys.registry import kind_of  # noqa: E402
from warmup.models.rebuilt import (  # noqa: E402
    make_pad_module,
    size_of,
)
from warmup.table.lookup import Lookup  # noqa: E402
from warmup.table.schema import OnMiss  # noqa: E402

EVIDENCE = Evidence(time_us=1.0, library_us=2.0, runner_up=None, runner_up_us=None, tried=2)
OPTIONS = {"max_autotune_gemm_backends": "ATEN,TRITON"}
WAYS = (AS_IS, PADDED)


def linear(x: Any, w: Any) -> Any:
    return F.linear(x, w)


def gated(x: Any, gate: Any, up: Any, down: Any, bias: Any) -> Any:
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


Shape = tuple[int, ...]
CASES: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
    "linear": (linear, ((560, 3420), (1280, 3420))),
    "gated": (gated, ((560, 1280), (3420, 1280), (3420, 1280), (1280, 3420), (3420,))),
    "conv1d": (conv1d, ((4, 140, 1602), (1602, 772), (772,), (1602,))),
    "shared": (shared, ((2, 280, 1284), (1284,), (1284, 1284), (772, 1284))),
    "batched": (batched, ((4, 560, 1284), (4, 1284, 772))),
}


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


def trace(function: Callable[..., Any], specs: Collection[TensorSpec]) -> tuple[Any, Any, Any]:
    """Return the graph of *function*, its inputs and their FakeTensorMode."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    with mode:
        inputs = [
            torch.empty_strided(
                one.sizes, one.strides, dtype=getattr(torch, one.dtype), device="cuda:0"
            )
            for one in specs
        ]
        graph = make_fx(
            torch.func.functionalize(function), decomposition_table=select_decomp_table()
        )(*inputs)
        graph.graph.eliminate_dead_code()
    return graph, inputs, mode


def ask(function: Callable[..., Any], specs: Collection[TensorSpec]) -> list[RegionQuestion]:
    """Return the pad questions of *function*, in the order in which they are asked."""
    graph, _, mode = trace(function, specs)
    tuner = Asking()
    attachment = connect().attach(
        Lookup({}, OnMiss.FALLBACK, Emitter([]), tuner=tuner), OPTIONS, "test", quiet=True
    )
    try:
        with V.set_fake_mode(mode):
            joint_graph_passes(graph, torch.device("cuda"))
    finally:
        attachment.detach()
    return tuner.questions


def lower(
    function: Callable[..., Any],
    specs: Collection[TensorSpec],
    way: Winner,
    only: Collection[str] | None = None,
) -> dict[str, list[str]]:
    """Return the GEMM keys of *function* padded as *way* says, and the pad keys that were hit."""
    graph, inputs, mode = trace(function, specs)
    hits: list[str] = []

    def note(event: Event) -> None:
        if event.name is EventName.HIT:
            hits.append(f"{event.fields['key']} -> {event.fields['winner']}")

    answers = Deciding({}, OnMiss.FALLBACK, Emitter([note]))
    answers.way, answers.only, answers.asked = way, only, set()
    settings = {"max_autotune_gemm": True, "fx_graph_cache": False, "compile_threads": 1}
    attachment = connect().attach(answers, OPTIONS, "test", quiet=True)
    try:
        with V.set_fake_mode(mode), config.patch(settings):
            graph = joint_graph_passes(graph, torch.device("cuda")) or graph
            post_grad_passes(graph, is_inference=True)
            lowering = GraphLowering(
                graph, example_inputs=inputs, is_inference=True, shape_env=mode.shape_env
            )
            with V.set_graph_handler(lowering), V.set_debug_handler(DebugContext()):
                lowering.run(*inputs)
    finally:
        attachment.detach()
    return {"gemms": sorted(answers.asked), "hits": sorted(set(hits))}


def written(name: str) -> tuple[Callable[..., Any], list[TensorSpec]]:
    """Return the function of a case in `CASES`, and its arguments."""
    function, shapes = CASES[name]
    return function, [
        TensorSpec(shape, torch.empty(shape, device="meta").stride(), 0, "bfloat16")
        for shape in shapes
    ]


def rebuilt(key: str) -> tuple[Callable[..., Any], list[TensorSpec]]:
    """Return the module that a build makes of a pad key, and its arguments."""
    module, tensors = make_pad_module(PadProblem.of_key(key))
    return module, [
        TensorSpec(
            tuple(map(size_of, one.sizes)), one.strides, 0, str(one.dtype).removeprefix("torch.")
        )
        for one in tensors.values()
    ]


def run(name: str) -> dict[str, Any]:
    function, specs = rebuilt(name) if name.startswith("pad ") else written(name)
    questions = []
    for question in ask(function, specs):
        found: dict[str, Any] = {"key": question.key, "reason": question.reason, "steps": None}
        if question.region is not None:
            found |= _both_ways(question, question.region)
        questions.append(found)
    whole = {way.uid: lower(function, specs, way)["gemms"] for way in WAYS}
    return {"questions": questions, "whole": whole}


def _both_ways(question: RegionQuestion, region: Region) -> dict[str, Any]:
    module = module_of(region, torch.device("cuda:0"))
    ways = {way.uid: lower(module, region.inputs, way, question.keys_in_region) for way in WAYS}
    outputs = [region.steps[i].target for i in region.outputs]
    return {
        "steps": [step.target for step in region.steps],
        "outputs": outputs,
        "keys": sorted(question.keys_in_region),
        **ways,
    }


def _sliced(tensor: Any, index: Any) -> Any:
    """Slice as the pass does, by the dispatcher alone: indexing would look for the device."""
    for dim, part in enumerate(index):
        if part != slice(None):
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, 0, part.stop)
    return tensor


def main() -> None:
    # Other patterns, whose examples put numbers on a real device.
    fuse_attention._sfdp_init = misc_patterns._misc_patterns_init = lambda *_: None
    for name in ("randn", "randn_like"):  # what the pass would run has no memory
        make = getattr(torch, name)
        setattr(torch, name, lambda *a, make=make, **kw: make(*a, **{**kw, "device": "meta"}))
    tensor: Any = torch.Tensor
    tensor.__getitem__ = _sliced
    sys.stdout.write(json.dumps({name: run(name) for name in sys.argv[1:]}))


if __name__ == "__main__":
    main()
