"""Build tiny models of the zoo, or serve them from their tables; print as JSON what happened.

    python zoo.py build|serve NAME...

The tables are NAME.json in the working directory.
All models are built, or served, one after the other in this process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torchvision_anywhere import import_torchvision

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "benchmarks"))

from zoo_models.entries import TINY, Entry

import warmup
from warmup.core.buckets import parse_buckets, parse_inputs
from warmup.inductor import connect
from warmup.models.loading import load_model, make_inputs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build(entry: Entry) -> dict[str, Any]:
    """Build the table, and return what each bucket asked for."""
    report = warmup.build(
        entry.model,
        entry.dims,
        f"{entry.name}.json",
        options=warmup.BuildOptions(inputs=tuple(entry.inputs)),
    )
    return {
        "asked": sorted({key for bucket in report.buckets for key in bucket.keys}),
        "not_tuned": dict(report.not_tuned),
        "distrusted": dict(report.distrusted),
    }


def serve(entry: Entry) -> dict[str, Any]:
    """Serve every bucket from the table, where a miss raises; return the counts."""
    torch.compiler.reset()
    torch.manual_seed(0)
    loaded, specs = load_model(entry.model), parse_inputs(entry.inputs)
    loaded.module.to(DEVICE)
    installed = warmup.install(f"{entry.name}.json", on_miss="strict", freezing=True)
    with installed as handle, torch.no_grad():
        compiled, errors = torch.compile(loaded.module, dynamic=False), []
        with connect().count_benchmarks() as sites:
            for bucket in parse_buckets(None, entry.dims):
                inputs = make_inputs(loaded, specs, bucket, DEVICE, None)
                both = [run(*inputs.args, **inputs.kwargs) for run in (loaded.module, compiled)]
                eager, own = (torch.utils._pytree.tree_leaves(output)[0].float() for output in both)
                errors.append(((own - eager).norm() / eager.norm()).item())
        report = handle.report()
    return {
        "hits": dict(report.hits),
        "misses": dict(report.misses),
        "uncovered": dict(report.uncovered),
        "unused": list(report.unused),
        "benchmarks": dict(sites),
        "error": max(errors),
        "clean": report.is_clean,
    }


if __name__ == "__main__":
    import_torchvision()
    do = {"build": build, "serve": serve}[sys.argv[1]]
    found = {name: do(TINY[name]) for name in sys.argv[2:]}
    sys.stdout.write("RESULT " + json.dumps(found) + "\n")
