"""Serve a model on a GPU and print, as JSON, what was measured and what was answered.

    python serve_block.py '{"table": "t.json", "seqlens": [64], "mode": "default"}'

``model`` is ``block``, ``small`` (the vision block), ``mixed``, ``fp8`` or ``int8``
(tests/programs/models). With
``prepared`` the table pads its weights, and outputs are held against those from before. Under
torchrun each rank serves on the GPU of its LOCAL_RANK, in a process group made before.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._inductor.runtime import benchmarking
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

import warmup

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import vision_block

sys.path.insert(0, str(Path(__file__).resolve().parent / "models"))
import eight_bit_ffn
import mixed_ops

HIDDEN = {"block": 1280, "small": 128, "mixed": 256, "fp8": 256, "int8": 256}
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "max-autotune": {"mode": "max-autotune"},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
    "max-autotune-gemm": {"options": {"max_autotune_gemm": True}},
}


def count(owner: Any, name: str, counts: Counter[str], where: str) -> None:
    """Count calls of a method, below whatever warmup wraps around it."""
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[where] += 1
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def make_model(name: str) -> torch.nn.Module:
    makers = {
        "block": vision_block.VisionBlock,
        "small": vision_block.small,
        "mixed": mixed_ops.MixedOps,
        "fp8": eight_bit_ffn.Fp8,
        "int8": eight_bit_ffn.Int8,
    }
    model: torch.nn.Module = makers[name]()
    return model


def main() -> None:
    case = json.loads(sys.argv[1])
    local = os.environ.get("LOCAL_RANK")
    if local is not None:
        torch.cuda.set_device(int(local))
        dist.init_process_group("gloo")
    counts: Counter[str] = Counter()
    owners = [benchmarking.Benchmarker, *benchmarking.Benchmarker.__subclasses__()]
    for owner in {*owners, type(benchmarking.benchmarker)}:
        for name in [name for name in vars(owner) if name.startswith("benchmark")]:
            if callable(vars(owner)[name]):
                count(owner, name, counts, "benchmarker")
    count(CachingAutotuner, "bench", counts, "autotuner")
    torch.manual_seed(0)
    model = make_model(case.get("model", "block")).eval().cuda()
    hidden = HIDDEN[case.get("model", "block")]
    inputs = [torch.randn(rows, hidden, device="cuda").bfloat16() for rows in case["seqlens"]]
    with torch.no_grad():
        before = [model(x).float() for x in inputs]
    handle = None
    if case["table"] is not None:
        os.environ["WARMUP_DEVICE"] = f"cuda:{local or 0}"
        handle = warmup.install(
            case["table"],
            on_miss=case.get("on_miss", "strict"),
            uncovered=case.get("uncovered", "library"),
            model=model if case.get("prepared") else None,
        )
    served = torch.compile(model, dynamic=False, **MODES[case["mode"]])
    errors = []
    with torch.no_grad():
        for x, expected in zip(inputs, before, strict=True):
            for _ in range(3):  # the second and third call record and replay CUDA graphs
                found = served(x).float()
            errors.append(((found - expected).norm() / expected.norm()).item())
    result: dict[str, Any] = {
        "errors": errors,
        "benchmarker": counts["benchmarker"],
        "autotuner": counts["autotuner"],
    }
    if handle is not None:
        report = handle.report()
        handle.close()
        result |= {
            "hits": dict(report.hits),
            "misses": dict(report.misses),
            "uncovered": dict(report.uncovered),
            "unused": list(report.unused),
            "from_cache": report.from_cache,
            "silent": report.is_silent,
            "digest": report.digest,
        }
    if local is not None:
        number = dist.group.WORLD._get_sequence_number_for_group()
        result |= {"rank": local, "collectives": number}
        dist.destroy_process_group()
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
