"""Serve a small model by `warmup.compile`, padded, in a mode that records CUDA graphs.

    python serve_padded.py MODE [DEVICE]

Prints as JSON the largest relative error, how often a CUDA graph was replayed in the second round
over the sizes, and what the report says.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn

import warmup

SIZES = (5, 16, 9, 40, 64, 33)


def count_replays() -> list[int]:
    """Count replays of CUDA graphs from now on, in the one element of what is returned."""
    counted = [0]
    original = torch.cuda.CUDAGraph.replay

    def replay(self: Any) -> None:
        counted[0] += 1
        original(self)

    torch.cuda.CUDAGraph.replay = replay
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
    replays, worst = count_replays(), 0.0
    with torch.no_grad():
        for _ in range(3):
            before = replays[0]
            for n in SIZES:
                x = torch.randn(n, 32, device=device)
                found, expected = served(x).clone(), model(x)
                assert found.shape == expected.shape
                worst = max(worst, float((found - expected).norm() / expected.norm()))
    report = served.report()
    said = {
        "error": worst,
        "replays": replays[0] - before,
        "artifacts": dict(report.artifacts),
        "outside": dict(report.outside),
    }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
