"""Builds tables of two and of eight equal layers, and serves the eight from the table of the two.

    python build_layers.py MODELS.py SEQLENS

Prints one JSON object: how many candidates each build measured, by key, and the server's lookups.
"""

from __future__ import annotations

import json
import sys

import torch

import warmup
from warmup.models import load_model


def build(model: str, seqlens: str, out: str) -> dict[str, int]:
    """Build a table and return how many candidates were measured for each key."""
    report = warmup.build(model, seqlens=seqlens, device="cpu", out=out)
    return {tuned.key: len(tuned.timings) for tuned in report.timings}


def serve(model: str, seqlens: str, table: str) -> dict[str, int]:
    """Serve *model* from *table* and return how many lookups hit and missed."""
    loaded = load_model(model)
    assert loaded.example_inputs is not None
    with warmup.install(table) as handle, torch.no_grad():
        compiled = torch.compile(loaded.module, dynamic=False)
        for size in seqlens.split(","):
            compiled(loaded.example_inputs(int(size)))
        report = handle.report()
    return {"hits": sum(report.hits.values()), "misses": sum(report.misses.values())}


def main() -> None:
    models, seqlens = sys.argv[1:]
    found = {name: build(f"{models}:{name}", seqlens, f"{name}.json") for name in ("two", "eight")}
    served = serve(f"{models}:eight", seqlens, "two.json")
    sys.stdout.write(json.dumps({**found, "served": served}) + "\n")


if __name__ == "__main__":
    main()
