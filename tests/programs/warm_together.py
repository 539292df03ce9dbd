"""Warm small models by `CompiledModel.warm`, and print as JSON what came of it.

    python warm_together.py                 every case but `caches`
    python warm_together.py caches          those that are named

Every output is compared with the model's own. What a case shows stands at its function.
"""

from __future__ import annotations

import json
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import LambdaFuture
from torch._inductor.runtime.runtime_utils import cache_dir, triton_cache_dir
from torch._inductor.triton_bundler import TritonBundler

import warmup
from warmup.core.errors import MissReason
from warmup.core.events import Emitter, Hit, Missed
from warmup.inductor import connect
from warmup.inductor.cached_graphs import CachedGraphs, counting_for_graph, deferring_kernels
from warmup.inductor.patches import Patches
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss

KERNEL = "a" * 52  # the folder of a kernel in Triton's cache, as if one had been compiled

KEY = "addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d out=bf16 | epilogue=none"


class Rows(nn.Module):
    """One kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2 + 1


class Broken(nn.Module):
    """A graph that breaks in the middle."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) * 2 + 1
        sys.stderr.write("between\n")
        return torch.relu(y) * 2 + 1


def serve(model: nn.Module, policy: str, buckets: str = "4,16") -> Any:
    return warmup.compile(
        model.eval(), dims={"x": {0: "n"}}, buckets=buckets, policy=policy, independent=("n",)
    )


def largest_error(served: Any, model: nn.Module, sizes: tuple[int, ...]) -> float:
    """Return the largest error at *sizes*, where nothing may be compiled any more."""
    errors = []
    with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
        for n in sizes:
            x = torch.randn(n, 8)
            errors.append((served(x) - model(x)).abs().max().item())
    return max(errors)


def told(served: Any) -> dict[str, Any]:
    """Return the report as JSON values."""
    report = served.report()
    return {"artifacts": dict(report.artifacts), "recompiles": report.recompiles}


@contextmanager
def noted() -> Iterator[list[str]]:
    """Note when a kernel goes to a worker and when one graph's are waited for.

    Each wait leaves a kernel with inductor's bundler, as a Triton kernel does that is loaded.
    """
    events: list[str] = []
    folder = Path(triton_cache_dir(0)) / KERNEL
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.json").write_text("{}")

    def note_submit(original: Callable[..., Any]) -> Callable[..., Any]:
        def submit(*args: Any) -> Any:
            events.append("submit")
            return original(*args)

        return submit

    def note_wait(original: Callable[..., None]) -> Callable[..., None]:
        def wait(*args: Any) -> None:
            events.append("wait")
            TritonBundler.put(KERNEL, 0)
            original(*args)

        return wait

    patches = Patches()
    patches.wrap(AsyncCompile, "cpp_pybinding", note_submit)
    patches.wrap(AsyncCompile, "wait", note_wait)
    try:
        yield events
    finally:
        patches.restore()


def together() -> dict[str, Any]:
    """Three ranges, warmed."""
    model = Rows()
    served = serve(model, "range")
    before = dict(vars(AsyncCompile))
    with noted() as events, connect().count_benchmarks() as sites, torch.no_grad():
        served.warm(torch.randn(3, 8))
    error = largest_error(served, model, (1, 2, 3, 4, 5, 16))
    saved = [pickle.loads(path.read_bytes()) for path in entries()]  # noqa: S301  inductor's own
    return {
        "events": events,
        "benchmarks": sum(sites.values()),
        "error": error,
        "carried": [
            [kernel.kernel_hash for kernel in graph._triton_bundle.kernel_artifacts]
            for graph in saved
        ],
        "restored": vars(AsyncCompile) == before,
        **told(served),
    }


def entries() -> list[Path]:
    """Return the entries of inductor's graph cache."""
    return [path for path in Path(cache_dir(), "fxgraph").rglob("*") if path.is_file()]


def caches() -> dict[str, Any]:
    """The same ranges in another process, over the caches of the one before."""
    found = together()
    counters = torch._dynamo.utils.counters
    return {
        **found,
        "graphs": counters["inductor"]["fxgraph_cache_hit"],
        "autograd": counters["aot_autograd"]["autograd_cache_hit"],
        "missed": counters["inductor"]["fxgraph_cache_miss"],
    }


def exact() -> dict[str, Any]:
    """Static buckets."""
    model = Rows()
    served = serve(model, "exact")
    with torch.no_grad():
        served.warm(torch.randn(3, 8))
    return {"error": largest_error(served, model, (4, 16)), **told(served)}


def failing() -> dict[str, Any]:
    """The kernel of the first bucket cannot be compiled, the second time it can."""
    model = Rows()
    served = serve(model, "exact")
    seen, raised, notes, patches = [], "", [], Patches()

    def fail() -> Any:
        raise OSError("no space left on device")

    def fail_once(original: Callable[..., Any]) -> Callable[..., Any]:
        def submit(*args: Any) -> Any:
            seen.append(args)
            return LambdaFuture(fail) if len(seen) == 1 else original(*args)

        return submit

    patches.wrap(AsyncCompile, "cpp_pybinding", fail_once)
    with torch.no_grad(), torch.compiler.config.patch(cache_key_tag="failing"):
        try:
            served.warm(torch.randn(3, 8))
        except Exception as error:  # noqa: BLE001  whatever it is, a test says what it should be
            raised, notes = f"{type(error).__name__}: {error}", error.__notes__
        after = told(served)
        patches.restore()
        served.warm(torch.randn(3, 8))
    return {
        "raised": raised,
        "notes": notes,
        "after": after,
        "error": largest_error(served, model, (4, 16)),
        **told(served),
    }


def untraceable() -> dict[str, Any]:
    """A model that raises at the second bucket."""

    class Picky(Rows):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 4:
                return super().forward(x.view(-1, 7))
            return super().forward(x)

    model = Picky()
    served = serve(model, "exact")
    with torch.no_grad():
        try:
            served.warm(torch.randn(3, 8))
            notes = []
        except Exception as error:  # noqa: BLE001  as above
            notes = error.__notes__
    return {"notes": notes, "error": largest_error(served, model, (4,)), **told(served)}


def padded() -> dict[str, Any]:
    """Buckets that sizes in between are padded to."""
    model = Rows()
    served = serve(model, "pad")
    with torch.no_grad():
        served.warm(torch.randn(3, 8))
    return {"error": largest_error(served, model, (1, 4, 5, 16)), **told(served)}


def broken() -> dict[str, Any]:
    """A graph break."""
    model = Broken()
    served = serve(model, "exact", "4")
    with torch.no_grad():
        served.warm(torch.randn(3, 8))
    return {"error": largest_error(served, model, (4,)), **told(served)}


def threads() -> dict[str, Any]:
    """While one thread warms, another calls the same model and one compiles something else."""
    model = Rows()
    served = serve(model, "range")
    other = torch.compile(Rows(), dynamic=False)
    start, errors = threading.Barrier(3), []

    def call(asked: Callable[..., Any], sizes: tuple[int, ...]) -> None:
        start.wait()
        with torch.no_grad():
            for n in sizes:
                x = torch.randn(n, 8)
                errors.append((asked(x) - model(x)).abs().max().item())

    workers = [
        threading.Thread(target=call, args=(served, (16, 3, 1, 7, 4))),
        threading.Thread(target=call, args=(other, (16, 4))),
    ]
    for worker in workers:
        worker.start()
    start.wait()
    with torch.no_grad():
        served.warm(torch.randn(3, 8))
    for worker in workers:
        worker.join()
    return {"error": max(errors), "calls": len(errors), **told(served)}


def early() -> dict[str, Any]:
    """A call from another thread before the kernels are waited for, and one from this thread."""
    model = Rows()
    compiled = torch.compile(model, dynamic=False)
    x = torch.randn(16, 8)
    errors = []

    def call() -> None:
        with torch.no_grad():
            errors.append((compiled(x) - model(x)).abs().max().item())

    with deferring_kernels() as handover:
        pending = handover.compile(call)
        calls_then = len(errors)
        with ThreadPoolExecutor() as other:
            other.submit(call).result()
    pending.finish()
    call()
    return {"calls then": calls_then, "calls": len(errors), "error": max(errors)}


def queued() -> dict[str, bool]:
    """Whether kernels go to the workers, before these are ready."""
    ready = AsyncCompile._ready_future
    AsyncCompile._ready_future = Future()
    use = AsyncCompile.use_process_pool
    found = {"before": use()}

    def call() -> None:
        found["inside"] = AsyncCompile.use_process_pool()
        with ThreadPoolExecutor() as other:
            found["elsewhere"] = other.submit(AsyncCompile.use_process_pool).result()

    try:
        with deferring_kernels() as handover:
            handover.compile(call)
            found["after"] = AsyncCompile.use_process_pool()
    finally:
        AsyncCompile._ready_future = ready
    return found


def late() -> dict[str, int]:
    """Decisions about the kernels of a graph that is compiled already."""
    answers = CachedGraphs(Lookup({}, OnMiss.FALLBACK, Emitter([])), "a tag").counting_answers()
    graph = SimpleNamespace(_warmup_compiled=("a tag", "this process", 2, 0))
    with counting_for_graph(graph):
        answers.emit(Hit(KEY, "pointwise"))
        answers.emit(Missed(KEY, MissReason.NOT_IN_TABLE, "first"))
    answers.emit(Hit(KEY, "pointwise"))
    _, _, decisions, misses = graph._warmup_compiled
    return {"decisions": decisions, "misses": misses}


CASES = (together, exact, failing, untraceable, padded, broken, threads, early, queued, late)


def main() -> None:
    asked = sys.argv[1:] or [case.__name__ for case in CASES]
    found = {}
    for case in (*CASES, caches):
        if case.__name__ in asked:
            torch.compiler.reset()
            found[case.__name__] = case()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
