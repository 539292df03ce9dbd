"""More library calls for every product, in a build and in the child program of its measurements.

    python two_candidates.py MODEL.py:NAME SEQLENS TABLE.json    prints the rows as JSON
    python two_candidates.py FD                                  is the child program

Beside torch's own there is ``slow_mm``, which multiplies ten times. With RANGE in the environment
the rows are those of ranges, and no candidate is within the bound of a regret.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import Any

import torch
from torch._inductor.kernel import mm
from torch._inductor.select_algorithm import ExternKernelChoice

from warmup.measuring import selection as range_regret
from warmup.measuring.trial_process import TrialProcess
from warmup.tuning import tuner, worker
from warmup.tuning.build import BuildOptions
from warmup.tuning.model import build_model


def slow_mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        torch.mm(a, b, out=out)
    return out


def offer() -> None:
    offered = ExternKernelChoice(slow_mm, None, name="slow_mm")
    original = mm.autotune_select_algorithm

    @functools.wraps(original)
    def select(name: str, choices: Any, nodes: Any, layout: Any, *args: Any, **kw: Any) -> Any:
        if name == "mm":
            choices = [*choices, offered.bind(nodes, layout)]
        return original(name, choices, nodes, layout, *args, **kw)

    mm.autotune_select_algorithm = select


def main() -> None:
    offer()
    if len(sys.argv) == 2:
        worker.main()
        return
    model, seqlens, out = sys.argv[1:]
    make = tuner.make_tuner

    def make_tuner(*args: Any) -> Any:
        made = make(*args)
        made.process = TrialProcess([sys.executable, __file__])
        return made

    tuner.make_tuner = make_tuner
    if "RANGE" in os.environ:
        range_regret._LIMIT = 0.0
    options = BuildOptions(policy="range" if "RANGE" in os.environ else "exact")
    report = build_model(model, seqlens, out, options=options)
    rows = {
        one.key: {
            "winner": one.row.winner.uid,
            "scope": one.row.evidence.scope,
            "bare_us": one.row.evidence.bare_us,
            "along": one.row.evidence.along,
            "fused": [t.winner.uid for t in one.timings if t.fused_us is not None],
        }
        for one in report.timings
    }
    sys.stdout.write(json.dumps({"rows": rows, "not_fused": report.not_fused}) + "\n")


if __name__ == "__main__":
    main()
