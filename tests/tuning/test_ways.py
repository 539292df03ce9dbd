"""The ways in which candidates are compiled in their region, and what follows where they spill."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from warmup.core.method import Method
from warmup.core.rows import Evidence, Family, Row, Timing, Tuned, Winner
from warmup.core.trial import Outcome, RegionKernels
from warmup.tuning.trials import faster_alone
from warmup.tuning.tuner import as_decided, less_demanding, variants_of

LIBRARY = Winner(Family.EXTERN, "aten::mm")
SPLIT = Winner(Family.SUBGRAPH, "decompose_k", (("k_split", 4),))


def template(rows: int, columns: int, warps: int) -> Winner:
    kwargs = (("BLOCK_M", rows), ("BLOCK_N", columns), ("num_warps", warps))
    return Winner(Family.TEMPLATE, "triton::mm", kwargs, "0123")


SMALL, LARGE, WIDE = template(64, 64, 4), template(128, 128, 4), template(128, 128, 8)


def compiled(winner: Winner, spills: int | None = 0, *, is_as_decided: bool = True) -> Outcome:
    return Outcome(winner=winner, kernels=RegionKernels(1, spills, 128, is_as_decided))


def test_a_template_that_is_faster_alone_is_compiled_both_ways() -> None:
    assert variants_of([LARGE, SMALL, SPLIT], may_win_alone=[LARGE]) == (
        *(replace(LARGE, fused=True), replace(LARGE, fused=False)),
        replace(SMALL, fused=True),
        SPLIT,
    )


def test_without_fusion_only_a_faster_gemm_can_win() -> None:
    """Near ties with the library count as faster; without its time every candidate does."""
    for library_us, faster in ((10.0, [SMALL, LARGE]), (None, [SMALL, LARGE, WIDE])):
        times_us = {LIBRARY: library_us, SMALL: 9.0, LARGE: 10.2, WIDE: 11.0}
        evidence = Evidence(time_us=9, library_us=None, runner_up=None, runner_up_us=None, tried=4)
        timings = tuple(Timing(winner, time_us) for winner, time_us in times_us.items())
        found = faster_alone(
            Tuned("k", Row(SMALL, evidence), timings), LIBRARY, Method(near_tie=0.03)
        )
        assert [one for one in found if one != LIBRARY] == faster, (library_us, faster)


def test_a_way_that_inductor_does_not_compile_is_left_out() -> None:
    """Where nothing could be fused into a template, no outcome says that it was fused."""
    refused = compiled(replace(SMALL, fused=True), is_as_decided=False)
    kept = (Outcome(winner=LIBRARY), compiled(replace(LARGE, fused=True)))
    assert as_decided([refused, *kept]) == kept


def test_where_a_kernel_spills_tiles_with_less_output_in_a_thread_follow() -> None:
    """A tile of 128 x 128 spills with 4 warps: 64 x 64, and 8 warps, are added in their order."""
    for spills, added in ((9, [WIDE, SMALL]), (8, []), (None, [])):
        outcomes = [compiled(replace(LARGE, fused=True), spills), Outcome(winner=LIBRARY)]
        assert less_demanding([template(256, 128, 8), WIDE, SMALL, SPLIT], outcomes) == added, (
            spills,
            added,
        )
