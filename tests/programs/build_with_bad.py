"""Builds a table while library calls that misbehave are offered for every product.

    python build_with_bad.py MODEL.py:NAME SEQLENS TABLE.json TIMINGS.json LIMIT_S

Prints one JSON object: for each key the winner, and why each candidate was rejected.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import bad_candidates
from torch._inductor.select_algorithm import AlgorithmSelectorCache, ExternKernelChoice

from warmup.measuring.trial_process import TrialProcess
from warmup.tuning import tuner
from warmup.tuning.model import build_model

HERE = Path(__file__).parent


def offer_bad_ones() -> None:
    """Add every call of `bad_candidates` to each selection for a plain product."""
    kernels = (bad_candidates.good, *bad_candidates.BAD)
    offered = [ExternKernelChoice(kernel, None, name=kernel.__name__) for kernel in kernels]
    original = AlgorithmSelectorCache.__call__

    @functools.wraps(original)
    def select(
        cache: Any, name: str, choices: Any, nodes: Any, layout: Any, *args: Any, **kw: Any
    ) -> Any:
        if name == "mm" and len(choices) > 1:  # a decision, not its answer
            choices = [*choices, *(choice.bind(nodes, layout) for choice in offered)]
        return original(cache, name, choices, nodes, layout, *args, **kw)

    AlgorithmSelectorCache.__call__ = select


def main() -> None:
    model, seqlens, out, timings, limit = sys.argv[1:]
    command = [sys.executable, str(HERE / "bad_candidates.py")]
    # Every child of the tuner is the program with the bad calls, also that of bare trials.
    tuner.TrialProcess = lambda _command, *_limit: TrialProcess(command, float(limit))
    offer_bad_ones()
    report = build_model(model, seqlens, out)
    found = {
        tuned.key: {
            "winner": str(tuned.row.winner),
            "rejected": {
                timing.winner.uid: [timing.rejection, timing.said]
                for timing in tuned.timings
                if timing.rejection is not None
            },
        }
        for tuned in report.timings
    }
    Path(timings).write_text(json.dumps(found, indent=1), encoding="utf-8")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
