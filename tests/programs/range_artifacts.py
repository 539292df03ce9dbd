"""Write a bundle of a range's artifact and of an exact size's, and serve both; print JSON.

    python range_artifacts.py MODEL TABLE FOLDER

The exact artifact is served by padding. For each policy: calls of a size inside of the bucket.
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
    """Write the bundle beside nothing, and return its path."""
    loaded = load_model(model)
    inputs = make_inputs(loaded, (), Bucket((("seqlen", HIGH),)), torch.device("cpu"), None)
    with warmup.install(table) as handle:
        for policy in ("range", "exact"):
            served = warmup.compile(loaded.module, **HOW, policy=policy)
            served._save_ahead(ArtifactWriter(folder, handle, "default"))
            served(*inputs.args)
        digest = handle.digest
    path = folder / "t.bundle"
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


def main(model: str, table: str, folder: str) -> None:
    """Print the answers by policy."""
    with torch.no_grad():
        bundle = write(model, table, Path(folder))
        found = {policy: serve(model, table, bundle, policy) for policy in ("range", "pad")}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
