"""Explain the products of a Linear on a stated H200: what guards inductor puts on the rows.

    python cuda_guards.py '{"sizes": [560, 1024, 2048], "grad": true}'

The graph that dynamo would hand over is made here, since without a driver neither dynamo nor
autograd takes tensors of a GPU: ``grad`` adds the product that the backward has for the weight. All
that follows is inductor's own: joint passes, lowering, scheduling, code generation, real guards.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import fake_gpu
import torch

fake_gpu.pretend()

from torch._dynamo.source import ConstantSource  # noqa: E402  after the device is pretended
from torch._guards import TracingContext, tracing  # noqa: E402
from torch._inductor import utils  # noqa: E402
from torch._inductor.fx_passes import fuse_attention, misc_patterns  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv  # noqa: E402

from warmup.core.events import Emitter  # noqa: E402
from warmup.diagnostics.explain import Cause, cover  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.inductor.guards import Artifact, DerivedSize, Recorder, record  # noqa: E402
from warmup.table.lookup import Lookup  # noqa: E402
from warmup.table.schema import OnMiss  # noqa: E402

K, N = 3420, 1280
H200 = {"tflops": 989.0, "gbps": 4800.0}


def compile_at(recorder: Recorder, size: int, *, grad: bool) -> list[Artifact]:
    """Compile the products for *size* rows and return what was recorded, unless it is served."""
    if any(artifact.serves(size) for artifact in recorder.artifacts):
        return []
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)
    source = ConstantSource("rows")
    symbol: Any = shapes.create_symbol(size, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    rows = shapes.create_symintnode(symbol, hint=size, source=source)

    def compute(x: Any, weight: Any, upstream: Any) -> tuple[Any, ...]:
        forward = x @ weight.t()
        return (forward, upstream.t() @ x) if grad else (forward,)

    with mode, torch.no_grad():
        placed: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda:0"}
        inputs = [torch.empty(*shape, **placed) for shape in ((rows, K), (N, K), (rows, N))]
        graph = make_fx(compute, _allow_non_fake_inputs=True)(*inputs)
    recorder.size = size
    before = len(recorder.artifacts)
    with tracing(TracingContext(mode)), torch.no_grad():
        recorder(graph, inputs)
    return recorder.artifacts[before:]


def place_of(cause: Cause) -> str:
    return f"{cause.place.path}:{cause.place.line} in {cause.place.function}" if cause.place else ""


def main() -> None:
    # Other patterns, whose examples put numbers on a real device.
    fuse_attention._sfdp_init = misc_patterns._misc_patterns_init = lambda *_: None
    cuda: Any = torch.cuda
    cuda._exchange_device = cuda._maybe_exchange_device = lambda *_: 0
    facts: Any = utils
    facts.get_device_tflops = lambda *_: H200["tflops"]
    facts.get_gpu_dram_gbps = lambda *_: H200["gbps"]
    asked = json.loads(sys.argv[1])
    recorder = Recorder("rows", (DerivedSize(1),))
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([]))
    attachment = connect().attach(lookup, {}, "test", quiet=True)
    try:
        with record(recorder, 16):
            sizes = asked["sizes"]
            found = cover(
                lambda size: compile_at(recorder, size, grad=asked["grad"]),
                sizes,
                asked.get("largest", max(sizes)),
                16,
            )
    finally:
        attachment.detach()
    spans = [
        {
            "low": span.low,
            "high": span.high,
            "tuned_at": span.tuned_at,
            "sizes": span.sizes,
            **{
                end: cause and [cause.kind, cause.expression, place_of(cause)]
                for end, cause in (("below", span.low_cause), ("above", span.high_cause))
            },
        }
        for span in found.spans
    ]
    sys.stdout.write(json.dumps({"spans": spans, "uncovered": found.uncovered}))


if __name__ == "__main__":
    main()
