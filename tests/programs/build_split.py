"""Build a table on the CPU with a rule that splits long reductions there; print what was decided.

    python build_split.py model.py:Model table.json PARTS

Inductor's own rule splits nothing on a CPU. The stated rule makes four parts of rows with 4096
elements. PARTS is the number of parts that is said to be fastest, by a wide margin.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._inductor.ir import Reduction
from torch._inductor.runtime.hints import ReductionHint

import warmup
from warmup.core.trial import Outcome, Samples
from warmup.keys.reduction import split_into
from warmup.measuring.machine import MachineWatch
from warmup.models.loading import load_model
from warmup.table.schema import choose_policy
from warmup.tuning import bucket_compiler as region_ways
from warmup.tuning import build as tuning_build

LENGTH = 4096
BY_RULE = 4


def split_on_cpu() -> None:
    """Let inductor split reductions of `LENGTH` elements, and a build ask about them."""
    original = Reduction.num_splits

    @functools.wraps(original)
    def num_splits(*args: Any, **kw: Any) -> Any:
        hint, parts = original(*args, **kw)
        numel = kw["reduction_numel"] if "reduction_numel" in kw else args[7]
        return (ReductionHint.INNER, BY_RULE) if numel == LENGTH else (hint, parts)

    def choose(*args: Any, **kw: Any) -> Any:
        return dataclasses.replace(choose_policy(*args, **kw), searches=frozenset({"split"}))

    Reduction.num_splits = staticmethod(num_splits)  # type: ignore[method-assign]
    tuning_build.choose_policy = choose  # type: ignore[attr-defined]


def state_times(fastest: int) -> list[dict[str, Any]]:
    """State which number of parts is fastest; return a list that each region's outcomes go to."""
    run_trial, outcomes = region_ways.run_trial, list[dict[str, Any]]()

    def run(trial: Any, *args: Any, **kw: Any) -> list[Outcome]:
        real = run_trial(trial, *args, **kw)  # compiles, calls and checks every way
        outcomes.extend(
            {"way": str(one.winner), "rejection": one.rejection, "error": one.error} for one in real
        )
        return [
            Outcome(
                winner=one.winner,
                samples=Samples((10.0 if one.winner == split_into(fastest) else 20.0,) * 12),
                rejection=one.rejection,
            )
            for one in real
        ]

    region_ways.run_trial = run  # type: ignore[assignment]
    MachineWatch.measuring = lambda _: nullcontext(lambda: False)  # type: ignore[method-assign,assignment,return-value]
    return outcomes


@contextmanager
def counting_splits() -> Iterator[list[int]]:
    """Collect into how many parts reductions are made that were lowered while open."""
    seen: list[int] = []
    original: Callable[..., Any] = vars(Reduction)["create_multilayer"].__func__

    def create_multilayer(cls: Any, *args: Any, **kw: Any) -> Any:
        seen.append(int(args[7]))
        return original(cls, *args, **kw)

    Reduction.create_multilayer = classmethod(create_multilayer)  # type: ignore[method-assign,assignment]
    try:
        yield seen
    finally:
        Reduction.create_multilayer = classmethod(original)  # type: ignore[method-assign,assignment]


def build(spelled: str, table: str) -> dict[str, Any]:
    """Build the table of *spelled* for 8 rows; the keys, and the rows of split reductions."""
    report = warmup.build(
        spelled,
        "8",
        table,
        options=warmup.BuildOptions(device="cpu", pad_weights=False, wait_for_quiet=0),
    )
    return {
        "tuned": [one.key for one in report.timings],
        "asked": list(report.buckets[0].keys),
        "not_tuned": dict(report.not_tuned),
        "rows": {
            key: {
                "winner": str(row.winner),
                "scope": row.evidence.scope,
                "tried": row.evidence.tried,
                "library_us": row.evidence.library_us,
            }
            for key, row in report.table.rows.items()
            if key.startswith("split ")
        },
    }


def serve(spelled: str, table: str) -> dict[str, Any]:
    """Serve one bucket strictly: the parts, the hits, and how far the output is from eager."""
    torch.compiler.reset()
    model = load_model(spelled).module
    inputs = torch.randn(8, LENGTH)
    with torch.no_grad(), counting_splits() as parts:
        expected = model(inputs)
        with warmup.install(table, on_miss="strict") as handle:
            found = torch.compile(model)(inputs)
            hits = sorted(handle.report().hits)
    error = ((found - expected).norm() / expected.norm()).item()
    return {"hits": hits, "parts": parts, "error": error}


def main() -> None:
    spelled, table, fastest = sys.argv[1:]
    split_on_cpu()
    outcomes = state_times(int(fastest))
    first = build(spelled, table)
    ways = list(outcomes)
    outcomes.clear()
    served = serve(spelled, table)
    again = build(spelled, table)
    sys.stdout.write(
        json.dumps(
            {
                "first": first,
                "ways": ways,
                "served": served,
                "again": {**again, "ways": list(outcomes)},
            }
        )
    )


if __name__ == "__main__":
    main()
