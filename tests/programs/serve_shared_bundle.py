"""Serve a model of repeated layers from a bundle; print what became of it as JSON.

    python serve_shared_bundle.py MODEL TABLE BUNDLE SIZES

``warmup.compile`` takes the form of the layers from its surroundings. An empty TABLE is the table
that `warmup run` installs.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

import torch
from torch._dynamo.utils import counters

import warmup
from warmup.models.loading import load_model
from warmup.serving.handle import installed


def serve(model: str, table: str, bundle: str, sizes: str) -> dict[str, Any]:
    """Compile and call every size once; return what was compiled, and the worst error."""
    torch.manual_seed(0)
    loaded = load_model(model)
    assert loaded.example_inputs is not None
    served = warmup.compile(
        loaded.module.eval(),
        dims={"x": {1: "seqlen"}},
        buckets={"seqlen": [int(size) for size in sizes.split(",")]},
        policy="exact",
        table=table or None,
        on_miss="strict",
        bundle=bundle or None,
    )
    worst = 0.0
    with torch.no_grad():
        for size in sizes.split(","):
            args = loaded.example_inputs(int(size))
            expected = loaded.module(*args)
            worst = max(worst, float((served(*args) - expected).norm() / expected.norm()))
    handle, layers = served.handle or installed(), served.report().layers
    assert handle is not None
    unpacked, report = handle.bundle, handle.report()
    return {
        "layers": None if layers is None else asdict(layers),
        "refused": None if unpacked is None else unpacked.refused,
        "compiled": None if unpacked is None else unpacked.compiled_besides(),
        "graphs": counters["stats"]["unique_graphs"],
        "lowered": counters["inductor"]["fxgraph_cache_miss"],
        "hits": sum(report.hits.values()) + report.cached_decisions,
        "misses": sum(report.misses.values()) + report.cached_misses,
        "error": worst,
    }


json.dump(serve(*sys.argv[1:]), sys.stdout)
