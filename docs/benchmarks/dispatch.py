"""What `warmup.compile` adds to a call: finding the bucket, against plain torch.compile.

    python docs/benchmarks/dispatch.py

A small model on the CPU, so that nearly all of a call is the host's work, and five buckets. The
plain one has a single artifact, dynamic for `range` and static for the other policies, and is
called at a size of the same bucket; under `pad` that is a bucket's own size, where nothing is
padded. Calls are timed in batches that take turns. The medians count, and for what was added that
of the differences of two batches in a row. Writes results/dispatch.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import torch  # noqa: E402  after the path
from torch import nn  # noqa: E402

import warmup  # noqa: E402

WIDTH = 16
BUCKETS = (16, 64, 256, 560, 1024)
SIZE = 64
BATCH = 200
ROUNDS = 200


def batch_us(call: Callable[[torch.Tensor], object], x: torch.Tensor) -> float:
    """Return microseconds for one of a batch of calls."""
    begin = time.perf_counter()
    for _ in range(BATCH):
        call(x)
    return (time.perf_counter() - begin) * 1e6 / BATCH


def measure(policy: str) -> dict[str, float]:
    """Return the medians of a plain call and of a served one under *policy*, in microseconds."""
    torch._dynamo.reset()
    x = torch.randn(SIZE, WIDTH)
    plain = torch.compile(nn.ReLU().eval(), dynamic=False)
    first = x.detach()
    if policy == "range":
        torch._dynamo.mark_dynamic(first, 0, min=17, max=SIZE)
    plain(first)
    dims = {"input": {0: "n"}}
    served = warmup.compile(
        nn.ReLU().eval(), dims=dims, buckets=BUCKETS, policy=policy, independent=("n",), table=None
    )
    served(x)
    times: dict[str, list[float]] = {"plain_us": [], "served_us": []}
    for _ in range(ROUNDS):
        times["plain_us"].append(batch_us(plain, x))
        times["served_us"].append(batch_us(served, x))
    added = [served - plain for plain, served in zip(*times.values(), strict=True)]
    found = {**times, "added_us": added}
    return {name: round(statistics.median(one), 2) for name, one in found.items()}


def main() -> None:
    with torch.no_grad():
        policies = {policy: measure(policy) for policy in ("range", "pad", "exact")}
    record = {
        "machine": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "cores": os.cpu_count(),
        },
        "policies": policies,
    }
    text = json.dumps(record, indent=2, sort_keys=True) + "\n"
    (HERE / "results" / "dispatch.json").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
