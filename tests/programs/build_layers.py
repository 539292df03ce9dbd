"""Builds tables of models with equal layers, and serves five of them from the table of two.

    python build_layers.py MODELS.py SEQLENS

Prints one JSON object: of each build how many candidates it measured, by key, the rows of its
table, and in each run of the model its layers, what a miss meant and how many rows were tuned; and
the server's lookups.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

import warmup
from warmup.models.loading import load_model
from warmup.table.lookup import Lookup
from warmup.tuning.bucket_compiler import BucketCompiler

NAMES = ("two", "five", "choosy", "counted")


def build(model: str, seqlens: str, out: str, *, all_layers: bool = False) -> dict[str, Any]:
    runs: list[tuple[int, str, int]] = []
    attached = BucketCompiler.attached

    @contextlib.contextmanager
    def watched(
        work: BucketCompiler, lookup: Lookup, what: str = "", **more: Any
    ) -> Iterator[None]:
        layers, tuned = len(work.model.module.layers), len(work.progress.tuned)  # type: ignore[arg-type]
        try:
            with attached(work, lookup, what, **more):
                yield
        finally:
            how = "tune" if lookup.measures else lookup.on_miss.value
            runs.append((layers, how, len(work.progress.tuned) - tuned))

    with mock.patch.object(BucketCompiler, "attached", watched):
        report = warmup.build(
            model,
            seqlens,
            out,
            options=warmup.BuildOptions(
                device="cpu",
                all_layers=all_layers,
                fused_top_k=0,  # how a row is measured is not the matter
            ),
        )
    measured = {tuned.key: len(tuned.timings) for tuned in report.timings}
    return {
        "measured": measured,
        "rows": sorted(report.table.rows),
        "runs": runs,
        "left_out": [result.left_out for result in report.buckets],
    }


def serve(model: str, seqlens: str, table: str) -> dict[str, int]:
    loaded = load_model(model)
    assert loaded.example_inputs is not None
    with warmup.install(table, freezing=True) as handle, torch.no_grad():
        compiled = torch.compile(loaded.module, dynamic=False)
        for size in seqlens.split(","):
            compiled(loaded.example_inputs(int(size)))
        report = handle.report()
    return {"hits": sum(report.hits.values()), "misses": sum(report.misses.values())}


def main() -> None:
    models, seqlens = sys.argv[1:]
    found = {name: build(f"{models}:{name}", seqlens, f"{name}.json") for name in NAMES}
    found["all"] = build(f"{models}:five", seqlens, "all.json", all_layers=True)
    served = serve(f"{models}:five", seqlens, "two.json")
    sys.stdout.write(json.dumps({**found, "served": served}) + "\n")


if __name__ == "__main__":
    main()
