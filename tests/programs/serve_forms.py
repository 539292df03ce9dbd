"""Serve the small Llama layers on a GPU strictly from a table, in one form of the layers.

    python serve_forms.py TABLE.json once|whole SEQLEN

Prints the report of the table, the error, and how often inductor's own benchmarks ran, as JSON.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

import warmup

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from llama_block import small

WIDTH = 128


def main() -> None:
    table, form, seqlen = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.manual_seed(0)
    model, benched = small().eval(), list[str]()
    bench = CachingAutotuner.bench

    @functools.wraps(bench)  # warmup checks its parameters
    def counted(kernel: Any, *args: Any, **kw: Any) -> Any:
        benched.append(str(kernel))
        return bench(kernel, *args, **kw)

    CachingAutotuner.bench = counted  # type: ignore[assignment, method-assign]
    x = torch.randn(1, seqlen, WIDTH, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad(), warmup.install(table, on_miss="strict", uncovered="forbid") as handle:
        served = warmup.compile(
            model,
            dims={"hidden_states": {1: "seqlen"}},
            buckets={"seqlen": (seqlen,)},
            policy="exact",
            layers=form,
        )
        expected = model(x).float()
        error = float((served(x).float() - expected).norm() / expected.norm())
        report, layers = handle.report(), served.report().layers
    found = {
        "hits": sorted(report.hits),
        "misses": dict(report.misses),
        "uncovered": dict(report.uncovered),
        "autotuner": len(benched),
        "shared": 0 if layers is None else layers.shared,
        "error": error,
    }
    sys.stdout.write("RESULT " + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
