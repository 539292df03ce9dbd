"""Build a table on the CPU whose kernels are decided by compiled regions; print what was decided.

    python build_regions.py model.py:Model table.json padded|PARTS

With ``padded``, inductor's pad_mm pass is switched on for a CPU; with a number of PARTS, a stated
rule makes four parts of rows with 4096 elements, where inductor's own splits nothing. The word is
the way that is said to be faster in regions, by a wide margin. Inductor's own calls are said to be
faster the other way, but for the product on padded operands alone.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._inductor.fx_passes import pad_mm
from torch._inductor.ir import Reduction
from torch._inductor.runtime.hints import ReductionHint

import warmup
from warmup.core.rows import Winner
from warmup.core.trial import Outcome, Samples
from warmup.inductor.pad_mm import _Product
from warmup.keys.pad import AS_IS, PADDED
from warmup.keys.reduction import split_into
from warmup.measuring.machine import MachineWatch
from warmup.models.loading import load_model
from warmup.table.schema import choose_policy
from warmup.tuning import bucket_compiler, tuner
from warmup.tuning import build as tuning_build

LENGTH = 4096
BY_RULE = 4


def pad_on_cpu() -> None:
    """Let the pass consider CPU tensors, and every unaligned GEMM of them."""
    module: Any = pad_mm
    module.check_device = lambda *_: True
    module.has_triton = lambda: True
    module.is_mm_compute_bound = lambda M, K, N, dtype: True  # noqa: N803  as torch has it


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


def state_times(faster: Winner) -> list[dict[str, Any]]:
    """State that *faster* is; return a list that the ways of each region are added to."""
    ways: list[dict[str, Any]] = []
    run_trial, time_calls = bucket_compiler.run_trial, tuner.time_calls

    def stated(winner: Winner, faster: Winner, **more: Any) -> Outcome:
        samples = Samples((10.0 if winner == faster else 20.0,) * 12)
        return Outcome(winner=winner, samples=samples, **more)

    def run(trial: Any, *args: Any, **kw: Any) -> list[Outcome]:
        real = run_trial(trial, *args, **kw)  # compiles, calls and checks every way
        for one in real:
            found = {"rejection": one.rejection, "error": one.error}
            ways.append({"way": str(one.winner), **found})
        return [stated(one.winner, faster, rejection=one.rejection) for one in real]

    def time(calls: Mapping[Winner, Callable[[int], object]], *args: Any) -> list[Outcome]:
        if PADDED not in calls:
            return time_calls(calls, *args)
        is_product = isinstance(calls[PADDED], _Product)
        return [stated(winner, faster if is_product else AS_IS) for winner in calls]

    bucket_compiler.run_trial, tuner.time_calls = run, time  # type: ignore[assignment]
    MachineWatch.measuring = lambda _: nullcontext(lambda: False)  # type: ignore[method-assign,assignment,return-value]
    return ways


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


def build(spelled: str, table: str, ways: list[dict[str, Any]]) -> dict[str, Any]:
    """Build the table of *spelled* for 8 rows: the keys, the rows, and the ways of regions."""
    ways.clear()
    options: dict[str, Any] = {"pad_weights": False, "all_layers": True, "wait_for_quiet": 0}
    options = warmup.BuildOptions(device="cpu", **options)
    report = warmup.build(spelled, "8", table, options=options)
    return {
        "ways": [*ways],
        "tuned": [one.key for one in report.timings],
        "asked": [*report.buckets[0].keys],
        "not_fused": dict(report.not_fused),
        "not_tuned": dict(report.not_tuned),
        "rows": {
            key: {
                "winner": str(row.winner),
                "ranking": row.evidence.ranking,
                "bare_ranking": row.evidence.bare_ranking,
                **{
                    name: getattr(row.evidence, name)
                    for name in ("scope", "tried", "time_us", "library_us", "bare_us")
                },
            }
            for key, row in report.table.rows.items()
        },
    }


def serve(spelled: str, table: str) -> dict[str, Any]:
    """Serve one bucket strictly: the parts, the hits, and how far the output is from eager."""
    torch.compiler.reset()
    model = load_model(spelled).module
    inputs = torch.randn(8, next((each.shape[-1] for each in model.parameters()), LENGTH))
    with torch.no_grad(), counting_splits() as parts:
        expected = model(inputs)
        with warmup.install(table, on_miss="strict", freezing=True) as handle:
            found = torch.compile(model)(inputs)
            report = handle.report()
    return {
        "hits": sorted(report.hits),
        "misses": dict(report.misses),
        "unused": list(report.unused),
        "parts": parts,
        "error": ((found - expected).norm() / expected.norm()).item(),
    }


def main() -> None:
    spelled, table, faster = sys.argv[1:]
    is_padded = faster == "padded"
    (pad_on_cpu if is_padded else split_on_cpu)()
    ways = state_times(PADDED if is_padded else split_into(int(faster)))
    answers = {
        "first": build(spelled, table, ways),
        "served": serve(spelled, table),
        "again": build(spelled, table, ways),
    }
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
