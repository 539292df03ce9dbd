"""Build tables on the CPU with inductor's pad_mm pass switched on there; print what was decided.

    python build_unaligned.py model.py:Model table.json padded|as_is|none

The third word is the way that is said to be faster, by a wide margin, in the compiled region; none
leaves the times as they are. Inductor's own calls are always said to be faster the other way, but
for the product on padded operands alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._inductor.fx_passes import pad_mm

import warmup
from warmup.core.rows import Winner
from warmup.core.trial import Outcome, Samples
from warmup.inductor.pad_mm import _Product
from warmup.keys.pad import AS_IS, PADDED
from warmup.measuring.machine import MachineWatch
from warmup.models.loading import load_model
from warmup.tuning import bucket_compiler as region_ways
from warmup.tuning import tuner


def pad_on_cpu() -> None:
    """Let the pass consider CPU tensors, and every unaligned GEMM of them."""
    module: Any = pad_mm
    module.check_device = lambda *_: True
    module.has_triton = lambda: True
    module.is_mm_compute_bound = lambda M, K, N, dtype: True  # noqa: N803  as torch has it


def state_times(faster: Winner) -> None:
    """State which way is faster: *faster* in regions, the other way by inductor's own calls."""

    def stated(winners: Any, faster: Winner) -> list[Outcome]:
        return [
            Outcome(winner=winner, samples=Samples((10.0 if winner == faster else 20.0,) * 12))
            for winner in winners
        ]

    slower = AS_IS if faster == PADDED else PADDED
    run_trial, time_calls = region_ways.run_trial, tuner.time_calls

    def run(trial: Any, *args: Any, **kw: Any) -> list[Outcome]:
        real = run_trial(trial, *args, **kw)  # compiles, calls and checks both ways
        assert all(one.rejection is None and one.time_us for one in real), real
        return stated([one.winner for one in real], faster)

    def time(calls: Mapping[Winner, Callable[[int], object]], *args: Any) -> list[Outcome]:
        if PADDED not in calls:
            return time_calls(calls, *args)
        return stated(calls, faster if isinstance(calls[PADDED], _Product) else slower)

    region_ways.run_trial, tuner.time_calls = run, time  # type: ignore[assignment]
    MachineWatch.measuring = lambda _: nullcontext(lambda: False)  # type: ignore[method-assign,assignment,return-value]


@contextmanager
def counting_compiles() -> Iterator[list[str]]:
    """Collect the ways in which regions were compiled while the context is open."""
    compiled: list[str] = []
    original = region_ways._Variants.compile

    def compile_way(self: Any, winner: Winner, inputs: Any) -> None:
        compiled.append(winner.uid)
        original(self, winner, inputs)

    region_ways._Variants.compile = compile_way  # type: ignore[method-assign]
    try:
        yield compiled
    finally:
        region_ways._Variants.compile = original  # type: ignore[method-assign]


def build(spelled: str, table: str, *, all_layers: bool = False) -> dict[str, Any]:
    """Build the table of *spelled* for 8 rows; what was tuned, and the rows."""
    with counting_compiles() as compiled:
        report = warmup.build(
            spelled,
            "8",
            table,
            options=warmup.BuildOptions(
                device="cpu", pad_weights=False, all_layers=all_layers, wait_for_quiet=0
            ),
        )
    return {
        "regions": compiled,
        "tuned": [one.key for one in report.timings],
        "asked": list(report.buckets[0].keys),
        "not_fused": dict(report.not_fused),
        "not_tuned": dict(report.not_tuned),
        "rows": {
            key: {
                "winner": str(row.winner),
                "scope": row.evidence.scope,
                "time_us": row.evidence.time_us,
                "library_us": row.evidence.library_us,
                "bare_us": row.evidence.bare_us,
                "ranking": row.evidence.ranking,
                "bare_ranking": row.evidence.bare_ranking,
                "error": row.evidence.error,
            }
            for key, row in report.table.rows.items()
        },
    }


def serve(spelled: str, table: str) -> dict[str, Any]:
    """Serve one bucket strictly: the hits, and how far the output is from eager."""
    torch.compiler.reset()
    model = load_model(spelled).module
    inputs = torch.randn(8, 63)
    with torch.no_grad():
        expected = model(inputs)
        with warmup.install(table, on_miss="strict", freezing=True) as handle:
            found = torch.compile(model)(inputs)
            report = handle.report()
    return {
        "hits": sorted(report.hits),
        "misses": dict(report.misses),
        "unused": list(report.unused),
        "error": ((found - expected).norm() / expected.norm()).item(),
    }


def main() -> None:
    spelled, table, faster = sys.argv[1:]
    pad_on_cpu()
    if faster != "none":
        state_times(PADDED if faster == "padded" else AS_IS)
    first = build(spelled, table)
    served = serve(spelled, table)
    sys.stdout.write(
        json.dumps(
            {"first": first, "served": served, "again": build(spelled, table, all_layers=True)}
        )
    )


if __name__ == "__main__":
    main()
