"""Serve small models by `warmup.compile`, called or warmed, and print as JSON what came of it.

    python serve_compiled.py CASE...

Every output is compared with the model's own. What a case shows stands at its function. Before each
everything that was compiled is forgotten, though not inductor's caches on disk.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import LambdaFuture
from torch._inductor.runtime.runtime_utils import cache_dir, triton_cache_dir
from torch._inductor.triton_bundler import TritonBundler

import warmup
from warmup.inductor import connect
from warmup.inductor.cached_graphs import deferring_kernels
from warmup.inductor.patches import Patches

SIZES = (5, 200, 400, 1, 16, 2, 3, 17, 256, 257, 560, 300)
BLOCK_DIMS = {"x": {0: "n"}, "mask": ("n",), "extra.bias.0": ("n", None)}
KERNEL = "a" * 52  # the folder of a kernel in Triton's cache, as if one had been compiled
said: list[str] = []


class Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        said.append(record.getMessage())


class Block(nn.Module):
    """A residual MLP with a mask and something nested; returns the rows, and the sum of each."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, *, extra: Any = None
    ) -> dict[str, torch.Tensor]:
        y = self.down(torch.relu(self.up(x))) + x
        y = y if mask is None else y * mask[:, None]
        y = y if extra is None else y + extra["bias"][0]
        return {"rows": y, "sums": y.sum(-1)}


class Stepping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        return x * 2


def model_of(function: Callable[[torch.Tensor], Any]) -> nn.Module:
    """Return a model that computes *function*, under a class of its own."""
    forward = lambda self, x: function(x)  # noqa: E731  a method
    module: nn.Module = type("Model", (nn.Module,), {"forward": forward})()
    return module.eval()


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2 + 1


def breaking(x: torch.Tensor) -> torch.Tensor:
    y = rows(x)
    sys.stderr.write("between\n")
    return rows(y)


def largest_error(found: Any, expected: Any) -> float:
    """Return the largest difference of two outputs; infinite when they differ in shape."""
    leaves = torch.utils._pytree.tree_leaves
    errors = [0.0]
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        if not isinstance(one, torch.Tensor):
            errors.append(0.0 if one == other else float("inf"))
        elif one.shape != other.shape:
            errors.append(float("inf"))
        elif one.numel():
            errors.append((one - other).abs().max().item())
    return max(errors)


def errors_at(
    served: Any, model: nn.Module, sizes: Iterable[int], shape: tuple[int, ...] = (8,)
) -> float:
    """Return the largest error at *sizes*, where nothing may be compiled any more."""
    with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
        inputs = [torch.randn(n, *shape) for n in sizes]
        return max(largest_error(served(x), model(x)) for x in inputs)


def told(served: Any) -> dict[str, Any]:
    report = served.report()
    return {
        "artifacts": dict(report.artifacts),
        "recompiles": report.recompiles,
        "outside": dict(report.outside),
        "breaks": list(report.breaks),
        "text": str(report),
        "said": list(said),
    }


# Called


def call(served: Any, model: nn.Module, n: int) -> float:
    torch.manual_seed(n)
    x, mask, bias = torch.randn(n, 32), torch.rand(n), torch.randn(n, 32)
    with torch.no_grad():
        expected = model(x, mask, extra={"bias": [bias]})
        return largest_error(served(x, mask=mask, extra={"bias": [bias]}), expected)


def block(policy: str, **more: Any) -> dict[str, Any]:
    """A block under *policy*, at all sizes, after which nothing may be compiled any more."""
    model = Block().eval()
    served = warmup.compile(model, dims=BLOCK_DIMS, buckets="16,256,560", policy=policy, **more)
    errors = [call(served, model, n) for n in SIZES]
    with torch.compiler.set_stance("fail_on_recompile"):
        errors += [call(served, model, n) for n in range(1, 561, 23) if policy != "exact"]
    errors.append(call(served, model, 600))
    return {"error": max(errors), **told(served)}


def limited() -> dict[str, Any]:
    """As many buckets as ever where torch.compile may make one artifact for each code object."""
    with torch._dynamo.config.patch(recompile_limit=1):
        found = block("range")
        dims = {"x": {0: "n"}, "mask": ("n",)}
        served = warmup.compile(Block().eval(), dims=dims, buckets="1", outside="error")
        x, mask = torch.randn(1, 32), torch.rand(1)
        refused = ""
        with torch.no_grad():
            served(x, mask=mask)
            try:
                served(x, mask=mask.double())
            except torch._dynamo.exc.FailOnRecompileLimitHit as error:
                refused = type(error).__name__
        return {"limit": torch._dynamo.config.recompile_limit, "refused": refused, **found}


def one(model: nn.Module, sizes: tuple[int, ...], **settings: Any) -> dict[str, Any]:
    served = warmup.compile(model.eval(), dims={"x": {0: "n"}}, buckets="16,256,560", **settings)
    errors, raised, traced = [0.0], [], []
    times = torch._dynamo.utils.compilation_time_metrics.setdefault("_compile.compile_inner", [])
    for n in sizes:
        x = torch.randn(n, 32)
        before = len(times)
        with torch.no_grad():
            try:
                errors.append(largest_error(served(x), model(x)))
            except warmup.WarmupError as error:
                raised.append(f"{type(error).__name__}: {error}")
        traced.append(len(times) - before)
    return {"error": max(errors), "raised": raised, "traced": traced, **told(served)}


def padded(function: Callable[..., Any] | nn.Module, *sizes: int) -> dict[str, Any]:
    model = function if isinstance(function, nn.Module) else model_of(function)
    return one(model, sizes, policy="pad", independent=("n",))


def grid(policy: str) -> dict[str, Any]:
    """Two dims, first with one of them full, then with the other."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    served = warmup.compile(
        model,
        dims={"input": ("batch", "n", None)},
        buckets={"n": "4,16", "batch": "2,8"},
        policy=policy,
        independent=("batch", "n"),
    )
    errors = []
    for b, n in ((8, 5), (3, 16), (3, 5), (8, 16), (2, 4), (1, 1), (2, 16), (7, 3)):
        x = torch.randn(b, n, 8)
        with torch.no_grad():
            errors.append(largest_error(served(x), model(x)))
    return {"error": max(errors), **told(served)}


def callers() -> dict[str, Any]:
    model = Block().eval()
    served = warmup.compile(model, dims=BLOCK_DIMS, buckets="16,256,560")
    start, errors = threading.Barrier(8), []

    def work(first: int) -> None:
        start.wait()
        errors.extend(call(served, model, n) for n in SIZES[first:] + SIZES[:first])

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"error": max(errors), "calls": len(errors), **told(served)}


def ladders() -> dict[str, Any]:
    """Three ladders whose intervals overlap, one after the other, over the same caches on disk."""
    model, counters, errors = Block().eval(), torch._dynamo.utils.counters, []
    for buckets in ("16,64", "16,200", "64,100", "16,64"):
        torch.compiler.reset()
        counters.clear()
        served = warmup.compile(model, dims=BLOCK_DIMS, buckets=buckets)
        errors += [call(served, model, n) for n in (5, 40, 64, 60)]
    hits = (
        counters["inductor"]["fxgraph_cache_hit"],
        counters["aot_autograd"]["autograd_cache_hit"],
    )
    return {"error": max(errors), "from_cache": max(hits), **told(served)}


# Warmed


def serve(model: nn.Module, policy: str, buckets: str = "4,16") -> Any:
    dims = {"x": {0: "n"}}
    return warmup.compile(model, dims=dims, buckets=buckets, policy=policy, independent=("n",))


def warmed(function: Callable[..., Any], policy: str, sizes: tuple[int, ...], **more: str) -> Any:
    model = model_of(function)
    served = serve(model, policy, **more)
    x = torch.randn(3, 8)
    with torch.no_grad():
        served.warm(x)
    marks = [name for name in vars(x) if "dynamo" in name]
    return {"error": errors_at(served, model, sizes), "marks": marks, **told(served)}


@contextlib.contextmanager
def noted() -> Iterator[list[str]]:
    """Note when a kernel goes to a worker and when one graph's are waited for."""
    # Each wait leaves a kernel with inductor's bundler, as a Triton kernel does that is loaded.
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
    """Three ranges, warmed; in another process too, over the caches of the one before."""
    before = dict(vars(AsyncCompile))
    with noted() as events, connect().count_benchmarks() as sites:
        found = warmed(rows, "range", (1, 2, 3, 4, 5, 16))
    entries = [path for path in Path(cache_dir(), "fxgraph").rglob("*") if path.is_file()]
    saved = [pickle.loads(path.read_bytes()) for path in entries]  # noqa: S301  inductor's own
    counters = torch._dynamo.utils.counters
    return {
        **found,
        "events": events,
        "benchmarks": sum(sites.values()),
        "carried": [len(graph._triton_bundle.kernel_artifacts) for graph in saved],
        "restored": vars(AsyncCompile) == before,
        "graphs": counters["inductor"]["fxgraph_cache_hit"],
        "autograd": counters["aot_autograd"]["autograd_cache_hit"],
        "missed": counters["inductor"]["fxgraph_cache_miss"],
    }


def failing() -> dict[str, Any]:
    """The kernel of the first bucket cannot be compiled, the second time it can."""
    model = model_of(rows)
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
    error = errors_at(served, model, (4, 16))
    return {"raised": raised, "notes": notes, "after": after, "error": error, **told(served)}


def untraceable() -> dict[str, Any]:
    model = model_of(lambda x: rows(x.view(-1, 7) if x.shape[0] > 4 else x))
    served, notes = serve(model, "exact"), []
    with torch.no_grad():
        try:
            served.warm(torch.randn(3, 8))
        except Exception as error:  # noqa: BLE001  as above
            notes = error.__notes__
    return {"notes": notes, "error": errors_at(served, model, (4,)), **told(served)}


def threads() -> dict[str, Any]:
    """While one thread warms, another calls the same model and one compiles something else."""
    model = model_of(rows)
    served = serve(model, "range")
    other = torch.compile(model_of(rows), dynamic=False)
    start, errors = threading.Barrier(3), []

    def call(asked: Callable[..., Any], sizes: tuple[int, ...]) -> None:
        start.wait()
        with torch.no_grad():
            for n in sizes:
                x = torch.randn(n, 8)
                errors.append(largest_error(asked(x), model(x)))

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
    model = model_of(rows)
    compiled = torch.compile(model, dynamic=False)
    x = torch.randn(16, 8)
    errors = []

    def call() -> None:
        with torch.no_grad():
            errors.append(largest_error(compiled(x), model(x)))

    with deferring_kernels() as handover:
        pending = handover.compile(call)
        calls_then = len(errors)
        with ThreadPoolExecutor() as other:
            other.submit(call).result()
    pending.finish()
    call()
    return {"calls then": calls_then, "calls": len(errors), "error": max(errors)}


CASES: dict[str, Any] = {
    "range": limited,
    "pad": lambda: block("pad", independent=("n",)),
    "exact": lambda: block("exact"),
    "dependent": lambda: padded(lambda x: x - x.mean(0), 16, 5, 9, 16),
    "counted": lambda: padded(lambda x: (x * 2, x.shape[0]), 16, 5, 9),
    "stepping": lambda: padded(Stepping(), 16, 5, 9),
    "broken": lambda: one(model_of(breaking), (5, 200, 300, 7, 100), policy="range"),
    "narrow": lambda: one(
        model_of(lambda x: x * 2 if x.shape[0] > 400 else x + 1), (300, 5, 310), policy="range"
    ),
    "fixed": lambda: one(model_of(lambda x: x * sum(range(x.shape[0]))), (300,), policy="range"),
    "refused": lambda: one(Block(), (600,), policy="exact", outside="error"),
    "empty": lambda: one(Block(), (0,), policy="range"),
    "grid-range": lambda: grid("range"),
    "grid-pad": lambda: grid("pad"),
    "callers": callers,
    "ladders": ladders,
    "together": together,
    "warm exact": lambda: warmed(rows, "exact", (4, 16)),
    "warm padded": lambda: warmed(rows, "pad", (1, 4, 5, 16)),
    "warm broken": lambda: warmed(breaking, "exact", (4,), buckets="4"),
    "failing": failing,
    "untraceable": untraceable,
    "threads": threads,
    "early": early,
}


def main() -> None:
    logging.getLogger("warmup").addHandler(Log())
    found = {}
    for name in sys.argv[1:] or CASES:
        torch.compiler.reset()
        said.clear()
        found[name] = CASES[name]()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
