"""Serve small models by `warmup.compile` at many sizes, and print as JSON what came of it.

    python serve_compiled.py

Every output is compared with the model's own. What a case is stands beside its name. Before each
everything that was compiled is forgotten, though not inductor's caches on disk.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from typing import Any

import torch
from torch import nn

import warmup

SIZES = (5, 200, 400, 1, 16, 2, 3, 17, 256, 257, 560, 300)
said: list[str] = []


class Log(logging.Handler):
    """Keeps what warmup says."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        said.append(record.getMessage())


class Block(nn.Module):
    """A residual MLP with a mask and something nested."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, *, extra: Any = None
    ) -> dict[str, torch.Tensor]:
        """Return the rows, and the sum of each."""
        y = self.down(torch.relu(self.up(x))) + x
        if mask is not None:
            y = y * mask[:, None]
        if extra is not None:
            y = y + extra["bias"][0]
        return {"rows": y, "sums": y.sum(-1)}


class Centered(nn.Module):
    """Rows that depend on each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows without their mean."""
        return x - x.mean(0)


class Counted(nn.Module):
    """Rows, and how many there are."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the rows doubled, and their number."""
        return x * 2, x.shape[0]


class Stepping(nn.Module):
    """A model that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows doubled."""
        self.steps.add_(1)
        return x * 2


class Broken(nn.Module):
    """A graph that breaks in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return something, and print in between."""
        y = self.up(x)
        sys.stderr.write("between\n")
        return torch.relu(y) * 2


class Narrow(nn.Module):
    """Looks at the size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one of two things."""
        return x * 2 if x.shape[0] > 400 else x + 1


class Fixed(nn.Module):
    """Computes with the size itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a product with as many ones."""
        return x * sum(range(x.shape[0]))


class Grid(nn.Module):
    """Two dynamic dims."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many rows and columns."""
        return torch.relu(self.up(x))


def largest_error(found: Any, expected: Any) -> float:
    """Return the largest difference of two outputs; infinite when they differ in shape."""
    leaves = torch.utils._pytree.tree_leaves
    pairs = list(zip(leaves(found), leaves(expected), strict=True))
    numbers = [(one, other) for one, other in pairs if not isinstance(one, torch.Tensor)]
    if any(one != other for one, other in numbers):
        return float("inf")
    pairs = [(one, other) for one, other in pairs if isinstance(one, torch.Tensor)]
    if any(one.shape != other.shape for one, other in pairs):
        return float("inf")
    return max((one - other).abs().max().item() if one.numel() else 0.0 for one, other in pairs)


def call(served: Any, model: nn.Module, n: int) -> float:
    """Serve a block with *n* rows; return the error."""
    torch.manual_seed(n)
    x, mask, bias = torch.randn(n, 32), torch.rand(n), torch.randn(n, 32)
    with torch.no_grad():
        expected = model(x, mask, extra={"bias": [bias]})
        return largest_error(served(x, mask=mask, extra={"bias": [bias]}), expected)


def block(policy: str, **more: Any) -> dict[str, Any]:
    """A block under *policy*, at all sizes, after which nothing may be compiled any more."""
    model = Block().eval()
    served = warmup.compile(
        model,
        dims={"x": {0: "n"}, "mask": ("n",), "extra.bias.0": ("n", None)},
        buckets="16,256,560",
        policy=policy,
        **more,
    )
    errors = [call(served, model, n) for n in SIZES]
    with torch.compiler.set_stance("fail_on_recompile"):
        errors += [call(served, model, n) for n in range(1, 561, 23) if policy != "exact"]
    errors.append(call(served, model, 600))
    return {"error": max(errors), **told(served)}


def limited() -> dict[str, Any]:
    """As many buckets as ever where torch.compile may make one artifact for each code object."""
    model = Block().eval()
    with torch._dynamo.config.patch(recompile_limit=1):
        found = block("range")
        served = warmup.compile(
            model, dims={"x": {0: "n"}, "mask": ("n",)}, buckets="1", outside="error"
        )
        x, mask = torch.randn(1, 32), torch.rand(1)
        plain = torch.compile(model, dynamic=False, fullgraph=True, backend="eager")
        refused = []
        for call in (served, plain):
            with torch.no_grad():
                call(x, mask=mask)
                try:
                    call(x, mask=mask.double())
                except torch._dynamo.exc.FailOnRecompileLimitHit as error:
                    refused.append(type(error).__name__)
        return {"limit": torch._dynamo.config.recompile_limit, "refused": refused, **found}


def told(served: Any) -> dict[str, Any]:
    """Return the report as JSON values."""
    report = served.report()
    return {
        "artifacts": dict(report.artifacts),
        "recompiles": report.recompiles,
        "outside": dict(report.outside),
        "breaks": list(report.breaks),
        "text": str(report),
        "said": list(said),
    }


def one(model: nn.Module, sizes: tuple[int, ...], **settings: Any) -> dict[str, Any]:
    """A model of one input under *settings*."""
    served = warmup.compile(model.eval(), dims={"x": {0: "n"}}, buckets="16,256,560", **settings)
    errors, raised, traced = [], [], []
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
    told_of = {"raised": raised, "traced": traced, **told(served)}
    return {"error": max(errors, default=0.0), **told_of}


def grid(policy: str) -> dict[str, Any]:
    """Two dims, first with one of them full, then with the other."""
    model = Grid().eval()
    served = warmup.compile(
        model,
        dims={"x": ("batch", "n", None)},
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


def threads() -> dict[str, Any]:
    """Eight threads that call new buckets at once."""
    model = Block().eval()
    served = warmup.compile(
        model,
        dims={"x": {0: "n"}, "mask": ("n",), "extra.bias.0": ("n", None)},
        buckets="16,256,560",
    )
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


def warm() -> dict[str, Any]:
    """All buckets compiled from one call, nothing afterwards; the caller's tensor as it was."""
    model = Grid().eval()
    served = warmup.compile(model, dims={"x": {1: "n"}}, buckets="4,16")
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        served.warm(x)
        with torch.compiler.set_stance("fail_on_recompile"):
            errors = [
                largest_error(served(y), model(y))
                for y in (torch.randn(2, n, 8) for n in range(1, 17))
            ]
    marks = [name for name in vars(x) if "dynamo" in name]
    return {"error": max(errors), "marks": marks, **told(served)}


def ladders() -> dict[str, Any]:
    """Three ladders whose intervals overlap, one after the other, over the same caches on disk."""
    model = Block().eval()
    dims = {"x": {0: "n"}, "mask": ("n",), "extra.bias.0": ("n", None)}
    errors = []
    for buckets in ("16,64", "16,200", "64,100"):
        torch.compiler.reset()
        served = warmup.compile(model, dims=dims, buckets=buckets)
        errors += [call(served, model, n) for n in (5, 40, 64, 60)]
    torch.compiler.reset()
    again = warmup.compile(model, dims=dims, buckets="16,64")
    before = graphs_from_cache()
    errors += [call(again, model, n) for n in (5, 40)]
    return {"error": max(errors), "from_cache": graphs_from_cache() - before, **told(again)}


def graphs_from_cache() -> int:
    """Return how many graphs inductor or AOTAutograd took from their caches until now."""
    counters = torch._dynamo.utils.counters
    return max(
        counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"]
    )


CASES: dict[str, Any] = {
    "range": limited,
    "pad": lambda: block("pad", independent=("n",)),
    "exact": lambda: block("exact"),
    "dependent": lambda: one(Centered(), (16, 5, 9, 16), policy="pad", independent=("n",)),
    "counted": lambda: one(Counted(), (16, 5, 9), policy="pad", independent=("n",)),
    "stepping": lambda: one(Stepping(), (16, 5, 9), policy="pad", independent=("n",)),
    "broken": lambda: one(Broken(), (5, 200, 300, 7, 100), policy="range"),
    "narrow": lambda: one(Narrow(), (300, 5, 310), policy="range"),
    "fixed": lambda: one(Fixed(), (300,), policy="range"),
    "refused": lambda: one(Narrow(), (600,), policy="exact", outside="error"),
    "empty": lambda: one(Block(), (0,), policy="range"),
    "grid-range": lambda: grid("range"),
    "grid-pad": lambda: grid("pad"),
    "threads": threads,
    "warm": warm,
    "ladders": ladders,
}


def main() -> None:
    logging.getLogger("warmup").addHandler(Log())
    found = {}
    for name, case in CASES.items():
        torch.compiler.reset()
        said.clear()
        found[name] = case()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
