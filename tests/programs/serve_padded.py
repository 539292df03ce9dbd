"""Serve a small model by `warmup.compile`, padded, in a mode that records CUDA graphs.

    python serve_padded.py MODE [DEVICE]

Prints as JSON the largest relative error, how often a CUDA graph was recorded and replayed in the
third round over the sizes, and what the report says.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn

import warmup

SIZES = (5, 16, 9, 40, 64, 33)


def count(name: str) -> list[int]:
    """Count calls of a method of CUDA graphs from now on, in the one element of the result."""
    counted = [0]
    original = getattr(torch.cuda.CUDAGraph, name)

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        counted[0] += 1
        original(self, *args, **kwargs)

    setattr(torch.cuda.CUDAGraph, name, call)
    return counted


def main(mode: str, device: str = "cuda") -> None:
    """Serve every size three times: two rounds compile, warm up and record."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).to(device).eval()
    served = warmup.compile(
        model,
        dims={"input": {0: "n"}},
        buckets="16,64",
        policy="pad",
        independent=("n",),
        mode=mode,
    )
    replays, records, worst = count("replay"), count("capture_begin"), 0.0
    with torch.no_grad():
        for _ in range(3):
            before = replays[0], records[0]
            for n in SIZES:
                x = torch.randn(n, 32, device=device)
                found, expected = served(x).clone(), model(x)
                assert found.shape == expected.shape
                worst = max(worst, float((found - expected).norm() / expected.norm()))
    report = served.report()
    said = {
        "error": worst,
        "replays": replays[0] - before[0],
        "records": records[0] - before[1],
        "artifacts": dict(report.artifacts),
        "outside": dict(report.outside),
    }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
