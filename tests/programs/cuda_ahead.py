"""Lower a graph for the stated H100 as a build does, and print what was sent to the workers when.

    echo '{"ahead": true}' | python cuda_ahead.py

The graph has a norm between two matmuls, and with ``sorts`` three reductions with a sort between.
``ahead``: candidates are compiled before they are asked for. ``serves``: nothing is measured.
The text of a loop says whether code was generated from it, as after a change of its types. The
hooks and inductor are the real ones; the pool keeps what is sent to it, and the library's kernel or
inductor's rule wins. ``lines`` are in order:
``sent KERNEL SOURCE-OR-CONFIG`` for what the pool was given, ``measured KEY`` for a question.
"""

from __future__ import annotations

import functools
import sys
import types
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h100  # before inductor looks for a device
import torch
import torch.nn.functional as F  # noqa: N812  as everybody does
from h100 import EVIDENCE, Case
from torch._inductor import config, metrics, select_algorithm
from torch._inductor.async_compile import AsyncCompile, CompiledTritonKernels
from torch._inductor.codegen import simd
from torch._inductor.loop_body import LoopBody
from torch._inductor.utils import clear_caches

from warmup.core.events import Emitter, Event
from warmup.core.rows import Row
from warmup.core.trial import Tuned
from warmup.keys.question import Question
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss


@dataclass(slots=True)
class KeepingPool:
    """Takes the place of the workers: keeps what is sent, and says at once that it is done."""

    lines: list[str] = field(default_factory=list)

    def submit(self, task: Any, *args: Any) -> Future[Any]:
        source = getattr(args[0], "args", None)  # a template: a partial with its name and source
        if task.__name__ == "compile_into_cache":
            what = f"{args[0]} {sorted(args[2].items())} {Path(args[1]).stem}"
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


_reduce_types, _debug_str = simd.indexing_dtype_strength_reduction, LoopBody.debug_str
_generated: list[LoopBody] = []


def reduce_types(body: LoopBody) -> None:
    _generated.append(body)
    _reduce_types(body)


def text_of(self: LoopBody) -> str:
    return f"{_debug_str(self)}\n{self in _generated}"


simd.indexing_dtype_strength_reduction = reduce_types
LoopBody.debug_str = text_of  # type: ignore[method-assign]


class NotingTuner(h100.StatedTuner):
    """The library's kernel and inductor's rule win; says when it was asked."""

    def measure(self, question: Question) -> Tuned | None:
        if question.makes_row:
            POOL.lines.append(f"measured {question.problem.key}")
        assert question.library is not None
        return Tuned(question.problem.key, Row(question.library, EVIDENCE), ())


def compute(x: Any, up: Any, down: Any) -> Any:
    return F.layer_norm(x @ up, (up.shape[1],)) @ down


def sort_twice(_x: Any, x: Any, _down: Any) -> Any:
    for function in (F.layer_norm, torch.nn.functional.rms_norm):
        x = torch.sort(function(x, (x.shape[1],)), stable=True)[0]
    return torch.softmax(x, -1)


def answer(case: Case) -> dict[str, Any]:
    """Generate the code of the graph in a build, and return what came of it."""
    POOL.lines.clear()
    clear_caches()
    CompiledTritonKernels.cache_clear()
    events: list[Event] = []
    lookup = Lookup(
        {},
        OnMiss.FALLBACK,
        Emitter([events.append]),
        tuner=None if case.get("serves") else NotingTuner(lambda _: 1.0),
        searches=frozenset({"launch", "reduction"}),
    )
    mode = h100.fakes()
    with mode:
        inputs = [h100.empty(4096, 512), h100.empty(512, 2048), h100.empty(2048, 512)]
    graph = h100.trace(sort_twice if case.get("sorts") else compute, inputs, mode)
    counted = metrics.generated_kernel_count
    with h100.attached(lookup, h100.GEMM_OPTIONS, ahead=case["ahead"]):
        code = h100.generate(graph, inputs, mode, compile_threads=config.compile_threads)
    return {
        "lines": list(POOL.lines),
        "events": [{"name": event.name, **event.fields} for event in events],
        "kernels": metrics.generated_kernel_count - counted,
        "code": h100.kernels_in(code),
    }


if __name__ == "__main__":
    h100.answer_each(answer)
