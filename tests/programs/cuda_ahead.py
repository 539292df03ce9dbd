"""Lower a graph for the stated H100 as a build does, and print what was sent to the workers when.

    echo '{"order": "beside"}' | python cuda_ahead.py

One case a line on stdin, one result a line on stdout. The graph has a norm between two matmuls.
``order`` says when candidates are compiled. The hooks and inductor are the real ones; the pool
keeps what is sent to it, and the library's kernel or inductor's rule wins. ``lines`` are in order:
``sent KERNEL SOURCE-OR-CONFIG`` for what the pool was given, ``measured KEY`` for a question.
"""

from __future__ import annotations

import functools
import json
import sys
import types
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import fake_gpu
import torch
import torch.nn.functional as F  # noqa: N812  as everybody does

fake_gpu.pretend()

from torch._inductor import config, metrics, select_algorithm  # noqa: E402  after the device is pretended
from torch._inductor.async_compile import AsyncCompile, CompiledTritonKernels  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.utils import clear_caches  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.core.events import Emitter, Event  # noqa: E402
from warmup.core.method import CompileOrder  # noqa: E402
from warmup.core.rows import Evidence, Row  # noqa: E402
from warmup.core.trial import Tuned  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.keys.question import Question  # noqa: E402
from warmup.table.lookup import Lookup  # noqa: E402
from warmup.table.schema import OnMiss  # noqa: E402

EVIDENCE = Evidence(time_us=1.0, library_us=None, runner_up=None, runner_up_us=None, tried=1)
OPTIONS = {"max_autotune_gemm_backends": "ATEN,TRITON"}


@dataclass(slots=True)
class KeepingPool:
    """Takes the place of the workers: keeps what is sent, and says at once that it is done."""

    lines: list[str] = field(default_factory=list)

    def submit(self, task: Any, *args: Any) -> Future[Any]:
        source = getattr(args[0], "args", None)  # a template: a partial with its name and source
        if task.__name__ == "compile_into_cache":
            what = f"{args[0]} {sorted(args[2].items())}"
        else:
            what = f"{source[0]} {hash(source[1])}" if source else task.__name__
        self.lines.append(f"sent {what}")
        done: Future[Any] = Future()
        done.set_result((None, 0))
        return done


torch._C._cuda_getCurrentRawStream = lambda _: 0  # type: ignore[attr-defined]
POOL = KeepingPool()
AsyncCompile.process_pool = staticmethod(functools.cache(lambda: POOL))  # type: ignore[method-assign,assignment]
AsyncCompile.use_process_pool = classmethod(lambda _: True)  # type: ignore[method-assign,assignment]
# With Python 3.11.8 and before inductor compiles no candidate ahead of its measurement.
select_algorithm.sys = types.SimpleNamespace(  # type: ignore[attr-defined]
    **{**vars(sys), "version_info": types.SimpleNamespace(major=3, minor=12, micro=0)}
)


class NotingTuner(fake_gpu.StatedTuner):
    """The library's kernel and inductor's rule win; says when it was asked."""

    def measure(self, question: Question) -> Tuned | None:
        if question.makes_row:
            POOL.lines.append(f"measured {question.problem.key}")
        assert question.library is not None
        return Tuned(question.problem.key, Row(question.library, EVIDENCE), ())


def generate() -> str:
    """Return the code that inductor generates for the graph."""
    shapes = ShapeEnv()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)

    def compute(x: Any, up: Any, down: Any) -> Any:
        wide = F.layer_norm(x @ up, (up.shape[1],))
        return wide @ down

    with mode:
        like: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda:0"}
        inputs = [torch.empty(one, **like) for one in ((4096, 512), (512, 2048), (2048, 512))]
        graph = make_fx(compute, decomposition_table=select_decomp_table())(*inputs)
        graph.graph.eliminate_dead_code()
    with config.patch({"max_autotune_gemm": True, "fx_graph_cache": False}):
        return fake_gpu.generate(graph, inputs, mode, shapes)


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Generate the code of *case* in a build, and return what came of it."""
    POOL.lines.clear()
    clear_caches()
    CompiledTritonKernels.cache_clear()
    events: list[Event] = []
    rows: dict[str, Row] = {}
    lookup = Lookup(
        rows,
        OnMiss.FALLBACK,
        Emitter([events.append]),
        tuner=NotingTuner(lambda _: 1.0),
        searches=frozenset({"launch", "reduction"}),
    )
    counted = metrics.generated_kernel_count
    attachment = connect().attach(
        lookup, OPTIONS, "test", quiet=True, order=CompileOrder(case["order"])
    )
    try:
        code = generate()
    finally:
        attachment.detach()
    return {
        "lines": list(POOL.lines),
        "events": [{"name": event.name, **event.fields} for event in events],
        "kernels": metrics.generated_kernel_count - counted,
        "code": fake_gpu.kernels_in(code),
    }


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()
