"""Serve a model from a bundle's artifacts; print what came of it as JSON.

    python serve_artifacts.py MODEL TABLE BUNDLE SIZES [CHANGE] [POLICY] [MODE]

CHANGE says what is done to the model or to the bundle before it is served, one of `CHANGES`.
``frames`` counts what dynamo traced, ``graphs`` what inductor lowered, ``benchmarks`` what it
measured and ``compiled`` the kernels that the bundle lacked.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import warmup
from warmup.buckets.bucket import parse_buckets
from warmup.models.loading import load_model, make_inputs


def rename(model: nn.Module) -> None:
    """Give a parameter of the first layer another name."""
    first = model.layers[0]
    first.renamed = first.up
    del first.up
    first.forward = lambda x: nn.functional.gelu(first.renamed(x)) * first.scale


def widen(model: nn.Module) -> None:
    """Let two layers pass wider tensors."""
    model.layers[0].up, model.layers[1].up = nn.Linear(32, 48), nn.Linear(48, 32)


def tie(model: nn.Module) -> None:
    """Let two layers share their weights."""
    model.layers[1].up = model.layers[0].up


def transpose(model: nn.Module) -> None:
    """Give a weight other strides."""
    up = model.layers[0].up
    up.weight = nn.Parameter(up.weight.detach().t().contiguous().t())


def swap_function(model: nn.Module) -> None:
    """Give a layer another activation, which no guard sees."""
    model.layers[0].activation = torch.relu


def scale(model: nn.Module) -> None:
    """Change a number that forward reads."""
    model.layers[0].scale = 3.0


def keep(_model: nn.Module) -> None:
    """Change nothing."""


CHANGES = {
    each.__name__: each for each in (keep, rename, widen, tie, transpose, swap_function, scale)
}


def serve(
    model: str,
    table: str,
    bundle: str,
    sizes: str,
    change: str = "keep",
    policy: str = "exact",
    mode: str = "default",
) -> dict[str, Any]:
    """Call every size twice, and return what the model, the table and torch say."""
    torch.manual_seed(0)
    loaded = load_model(model)
    module = loaded.module
    CHANGES[change](module)
    buckets = parse_buckets(sizes, None)
    began = time.monotonic()
    served = warmup.compile(
        module,
        dims={"x": {1: "seqlen"}},
        buckets={"seqlen": [dict(bucket.sizes)["seqlen"] for bucket in buckets]},
        policy=policy,
        mode=mode,
        table=table,
        bundle=bundle,
        **({"independent": ("seqlen",)} if policy == "pad" else {}),
    )
    from torch._dynamo.utils import counters
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.benchmarking import Benchmarker

    lowered: list[object] = []
    measured: list[object] = []
    worst = 0.0

    def counting(original: Callable[..., Any], into: list[object]) -> Callable[..., Any]:
        def count(this: Any, *args: Any, **kwargs: Any) -> Any:
            into.append(this)
            return original(this, *args, **kwargs)

        return count

    lower, measure = GraphLowering.run, Benchmarker.benchmark
    with (
        torch.no_grad(),
        patch.object(GraphLowering, "run", counting(lower, lowered)),
        patch.object(Benchmarker, "benchmark", counting(measure, measured)),
    ):
        for bucket in buckets:
            made = make_inputs(loaded, (), bucket, torch.device("cpu"), None)
            expected = module(*made.args, **made.kwargs)
            for _ in range(2):
                found = served(*made.args, **made.kwargs)
                worst = max(worst, float((found - expected).norm() / expected.norm()))
        seconds = time.monotonic() - began
        counts = {
            "frames": counters["stats"].get("unique_graphs", 0),
            "graphs": len(lowered),
            "benchmarks": len(measured),
            "compiled": _bundle_of(served).compiled_besides(),
            "hits": dict(_handle_of(served).report().hits),
        }
        made = make_inputs(loaded, (), buckets[0], torch.device("cpu"), None)
        odd = served(*made.args, negative=True)
        expected = module(*made.args, negative=True)
        odd_error = float((odd - expected).norm() / expected.norm())
    report, bundle, counted = served.report(), _bundle_of(served), _handle_of(served).report()
    return {
        **counts,
        "bundle_refused": bundle.refused,
        "artifacts": bundle.artifacts,
        "bundled": report.bundled,
        "refused": report.refused,
        "error": worst,
        "misfits": report.misfits,
        "odd_error": odd_error,
        "from_cache": counted.from_cache,
        "decisions": counted.cached_decisions,
        "artifact_rows": dict(counted.artifact_rows),
        "unused": counted.unused,
        "said": str(counted),
        "of_model": str(report),
        "seconds": seconds,
    }


def _handle_of(served: Any) -> Any:
    assert served.handle is not None
    return served.handle


def _bundle_of(served: Any) -> Any:
    assert _handle_of(served).bundle is not None
    return served.handle.bundle


if __name__ == "__main__":
    json.dump(serve(*sys.argv[1:]), sys.stdout)
