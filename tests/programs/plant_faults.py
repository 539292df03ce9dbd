"""Serve the example MLP from a table while every hook raises, and print what came of that.

    python plant_faults.py TABLE before|after ON_MISS

The hooks raise as `planted` says.
"""

from __future__ import annotations

import json
import sys

import torch
from planted import hooks, plant, reached, reported

import warmup
from warmup.models.loading import load_model


def main() -> None:
    table, when, on_miss = sys.argv[1:]
    plant(when)
    model = load_model("examples/mlp.py:MLP").module.eval()
    torch.manual_seed(0)
    x = torch.randn(16, 256)
    refused = error = None
    with torch.no_grad():
        expected = model(x)
        handle = warmup.install(table, on_miss=on_miss, uncovered="forbid", freezing=True)
        try:
            error = (torch.compile(model, dynamic=False)(x) - expected).abs().max().item()
        except Exception as raised:  # noqa: BLE001  printed
            refused = " ".join(f"{type(raised).__name__}: {raised}".splitlines()[:2])
        misses = dict(handle.report().miss_reasons)
        handle.close()
    found = {"hooks": sorted(hooks), "reached": reached, "reported": reported, "misses": misses}
    print(f"PLANTED {json.dumps({**found, 'error': error, 'refused': refused})}")  # noqa: T201  the result


if __name__ == "__main__":
    main()
