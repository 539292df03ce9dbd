"""Write a bundle of a range's artifact, and serve it and that of an exact size; print JSON.

    python range_artifacts.py MODEL TABLE BUNDLE FOLDER

The exact artifact is that of BUNDLE, and is served by padding. For each policy: calls of a size
inside of the bucket. The range's bundle is written to FOLDER.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

import warmup
from warmup.buckets.bucket import Bucket
from warmup.inductor import connect
from warmup.inductor.cache_files import read_artifacts
from warmup.models.loading import load_model, make_inputs
from warmup.serving.compiled.save_ahead import ArtifactWriter
from warmup.table.bundle_file import needs_of, write_bundle

HIGH, INSIDE = 8, 5
HOW: dict[str, Any] = {
    "dims": {"x": {1: "seqlen"}},
    "buckets": (HIGH,),
    "independent": ("seqlen",),
}


def write(model: str, table: str, folder: Path) -> str:
    """Write the bundle of a range to *folder*, and return its path."""
    loaded = load_model(model)
    inputs = make_inputs(loaded, (), Bucket((("seqlen", HIGH),)), torch.device("cpu"), None)
    with warmup.install(table) as handle:
        served = warmup.compile(loaded.module, **HOW, policy="range")
        served._save_ahead(ArtifactWriter(folder, handle, "default"))
        served(*inputs.args)
        digest = handle.digest
    path = folder / "range.bundle"
    write_bundle(path, digest, needs_of(connect().runtime("cpu")), read_artifacts(folder))
    return str(path)


def serve(model: str, table: str, bundle: str, policy: str) -> dict[str, Any]:
    """Serve two sizes, and return what was traced, and how far the outputs are from eager's."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    loaded = load_model(model)
    served = warmup.compile(
        loaded.module, **HOW, policy=policy, table=table, bundle=bundle, outside="error"
    )
    errors = []
    for size in (HIGH, INSIDE):
        bucket = Bucket((("seqlen", size),))
        args = make_inputs(loaded, (), bucket, torch.device("cpu"), None).args
        expected = loaded.module(*args)
        errors.append(float((served(*args) - expected).norm() / expected.norm()))
    served.close()
    report = served.report()
    return {
        "frames": counters["stats"]["unique_graphs"],
        "errors": errors,
        "bundled": report.bundled,
        "refused": dict(report.refused),
        "misfits": report.misfits,
    }


def main(model: str, table: str, bundle: str, folder: str) -> None:
    """Print the answers by policy."""
    with torch.no_grad():
        bundles = {"range": write(model, table, Path(folder)), "pad": bundle}
        found = {policy: serve(model, table, path, policy) for policy, path in bundles.items()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
