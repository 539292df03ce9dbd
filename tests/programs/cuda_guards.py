"""Explain the products of a Linear on a stated H200: what guards inductor puts on the rows.

    echo '{"sizes": [560, 1024, 2048], "grad": true}' | python cuda_guards.py

The graph that dynamo would hand over is made here, since without a driver neither dynamo nor
autograd takes tensors of a GPU: ``grad`` adds the product that the backward has for the weight. All
that follows is inductor's own: joint passes, lowering, scheduling, code generation, real guards.
"""

from __future__ import annotations

from typing import Any

import h100  # before inductor looks for a device
import torch
from h100 import Case
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._inductor import utils
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic

from warmup.core.events import Emitter
from warmup.diagnostics.explain import Cause, cover
from warmup.inductor.guards import Artifact, DerivedSize, Recorder, record
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss

K, N = 3420, 1280
H200 = {"tflops": 989.0, "gbps": 4800.0}


def compile_at(recorder: Recorder, size: int, *, grad: bool) -> list[Artifact]:
    """Compile the products for *size* rows and return what was recorded, unless it is served."""
    if any(artifact.serves(size) for artifact in recorder.artifacts):
        return []
    mode = h100.fakes()
    shapes: Any = mode.shape_env
    source = ConstantSource("rows")
    symbol: Any = shapes.create_symbol(size, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    rows = shapes.create_symintnode(symbol, hint=size, source=source)

    def compute(x: Any, weight: Any, upstream: Any) -> tuple[Any, ...]:
        forward = x @ weight.t()
        return (forward, upstream.t() @ x) if grad else (forward,)

    with mode, torch.no_grad():
        inputs = [h100.empty(*shape) for shape in ((rows, K), (N, K), (rows, N))]
        graph = make_fx(compute, _allow_non_fake_inputs=True)(*inputs)
    recorder.size = size
    before = len(recorder.artifacts)
    with tracing(TracingContext(mode)), torch.no_grad():
        recorder(graph, inputs)
    return recorder.artifacts[before:]


def describe(cause: Cause | None) -> list[str] | None:
    place = cause and cause.place
    spelled = f"{place.path}:{place.line} in {place.function}" if place else ""
    return cause and [cause.kind, cause.expression, spelled]


def answer(case: Case) -> list[dict[str, Any]]:
    recorder = Recorder("rows", (DerivedSize(1),))
    sizes = case["sizes"]
    with h100.attached(Lookup({}, OnMiss.FALLBACK, Emitter([]))), record(recorder, 16):
        found = cover(
            lambda size: compile_at(recorder, size, grad=case["grad"]), sizes, max(sizes), 16
        )
    assert found.uncovered is None
    return [
        {
            "high": span.high,
            "tuned_at": span.tuned_at,
            "sizes": span.sizes,
            "below": describe(span.low_cause),
            "above": describe(span.high_cause),
        }
        for span in found.spans
    ]


if __name__ == "__main__":
    h100.without_device_patterns()
    cuda: Any = torch.cuda
    cuda._exchange_device = cuda._maybe_exchange_device = lambda *_: 0
    facts: Any = utils
    facts.get_device_tflops = lambda *_: H200["tflops"]
    facts.get_gpu_dram_gbps = lambda *_: H200["gbps"]
    h100.answer_each(answer)
