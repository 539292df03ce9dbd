"""Serve a table with the bundle beside it in empty caches; print what became of them as JSON.

python serve_bundle.py MODEL TABLE SIZES [DEVICE [INPUT]]
"""

import json
import os
import sys
from typing import Any

import torch

import warmup
from warmup.core.buckets import parse_buckets, parse_inputs
from warmup.models.loading import load_model, make_inputs


def serve(model: str, table: str, sizes: str, device: str = "cpu", *inputs: str) -> dict[str, Any]:
    """Compile and call every size once, and return what the handle says, and the worst error."""
    torch.manual_seed(0)
    loaded = load_model(model)
    module = loaded.module.eval().to(device)
    compiled = torch.compile(module, dynamic=False)
    specs, worst = parse_inputs(inputs), 0.0
    os.environ["WARMUP_DEVICE"] = device
    installed = warmup.install(table, on_miss="strict", freezing=True)
    with installed as handle, torch.no_grad():
        for bucket in parse_buckets(sizes, None):
            made = make_inputs(loaded, specs, bucket, torch.device(device), None)
            expected = module(*made.args, **made.kwargs)
            found = compiled(*made.args, **made.kwargs)
            worst = max(worst, float((found - expected).norm() / expected.norm()))
        report, unpacked = handle.report(), handle.bundle
    assert unpacked is not None
    return {
        "refused": unpacked.refused,
        "kernels": unpacked.kernels,
        "graphs": unpacked.graphs,
        "compiled": unpacked.compiled_besides(),
        "from_cache": report.from_cache,
        "misses": sum(report.misses.values()),
        "error": worst,
    }


json.dump(serve(*sys.argv[1:]), sys.stdout)
