"""Serve a model from a bundle's artifacts; print what came of it as JSON.

    python serve_artifacts.py MODEL TABLE BUNDLE SIZES [CHANGE] [POLICY] [MODE]

CHANGE says what is done to the model or to the bundle before it is served, one of `CHANGES`.
``frames`` counts what dynamo traced, ``graphs`` what inductor lowered, ``benchmarks`` what it
measured and ``compiled`` the kernels that the bundle lacked.
"""

import json
import sys
import time
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
    first.forward = lambda x: x + first.down(nn.functional.gelu(first.renamed(x)))


def widen(model: nn.Module) -> None:
    """Give the first layer another width."""
    first = model.layers[0]
    first.up, first.down = nn.Linear(32, 80), nn.Linear(80, 32)


def tie(model: nn.Module) -> None:
    """Let two layers share their weights."""
    model.layers[1] = model.layers[0]


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
        dims={"x": {0: "seqlen"}},
        buckets={"seqlen": [dict(bucket.sizes)["seqlen"] for bucket in buckets]},
        policy=policy,
        mode=mode,
        table=table,
        bundle=bundle,
        on_miss="strict",
        **({"independent": ("seqlen",)} if policy == "pad" else {}),
    )
    from torch._dynamo.utils import counters
    from torch._inductor.graph import GraphLowering

    lowered, worst = [], 0.0
    lower = GraphLowering.run

    def count(graph: Any, *args: Any) -> Any:
        lowered.append(graph)
        return lower(graph, *args)

    with torch.no_grad(), patch.object(GraphLowering, "run", count):
        for bucket in buckets:
            made = make_inputs(loaded, (), bucket, torch.device("cpu"), None)
            expected = module(*made.args, **made.kwargs)
            for _ in range(2):
                found = served(*made.args, **made.kwargs)
                worst = max(worst, float((found - expected).norm() / expected.norm()))
        seconds = time.monotonic() - began
        made = make_inputs(loaded, (), buckets[0], torch.device("cpu"), None)
        before = served.report().misfits
        odd = served(made.args[0].double().float(), negative=True)
        odd_error = float((odd + module(*made.args)).norm())
    handle, report = served.handle, served.report()
    assert handle is not None
    assert handle.bundle is not None
    counted = handle.report()
    return {
        "bundle_refused": handle.bundle.refused,
        "artifacts": handle.bundle.artifacts,
        "bundled": report.bundled,
        "refused": report.refused,
        "frames_before_odd_call": None,
        "frames": counters["stats"].get("unique_graphs", 0),
        "graphs": len(lowered),
        "benchmarks": counters["inductor"].get("benchmarking.InductorBenchmarker.benchmark", 0),
        "compiled": handle.bundle.compiled_besides(),
        "error": worst,
        "misfits": report.misfits - before,
        "odd_error": odd_error,
        "hits": dict(counted.hits),
        "from_cache": counted.from_cache,
        "artifact_rows": dict(counted.artifact_rows),
        "unused": counted.unused,
        "said": str(counted),
        "of_model": str(report),
        "seconds": seconds,
    }


if __name__ == "__main__":
    json.dump(serve(*sys.argv[1:]), sys.stdout)
