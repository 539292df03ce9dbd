"""`Tuner.measure`: rows of GEMMs in their region, from stated times of what a child compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from warmup.core.method import Method
from warmup.core.rows import Family, Row, Scope, Tuned, Winner
from warmup.core.trial import Candidate, Outcome, Region, RegionKernels, Samples, TensorSpec, Trial
from warmup.keys.gemm import GemmProblem
from warmup.keys.question import GemmQuestion
from warmup.measuring.trial_process import TrialResult
from warmup.tuning.tuner import Tuner

KEY = "mm m=10960 n=3072 k=768 bf16 a=row b=col out=bf16 | epilogue=gelu"
LIBRARY = Winner(Family.EXTERN, "aten::mm")
REGION = Region((TensorSpec((1,), (1,), 0, "bfloat16"),), (), (), (1,))
BARE_US = {LIBRARY: 104.0}
ALONE_US = 51.0  # of the activation's own kernel

Compile = Callable[[Winner], tuple[float, RegionKernels]]


def template(rows: int, columns: int, warps: int, us: float) -> Winner:
    """Return a template that takes *us* microseconds alone."""
    kwargs = (("BLOCK_M", rows), ("BLOCK_N", columns), ("num_warps", warps))
    winner = Winner(Family.TEMPLATE, "triton::mm", kwargs, "0123")
    BARE_US[winner] = us
    return winner


SPILLING = template(128, 128, 4, 90.0)
SLOWER = template(128, 128, 8, 106.0)
SMALL = template(64, 64, 4, 120.0)


@dataclass
class StatedProcess:
    """Runs trials by stating times: `BARE_US` alone, and *compiles* in the region."""

    compiles: Compile
    pid: int | None = None
    asked: list[list[Winner]] = field(default_factory=list)

    def run(self, trial: Trial) -> TrialResult:
        """Return the stated outcome of each candidate, and note which were asked in a region."""
        winners = [candidate.winner for candidate in trial.candidates]
        if trial.region is None:
            return TrialResult(
                tuple(Outcome(winner=w, samples=_times(BARE_US[w])) for w in winners)
            )
        self.asked.append(winners)
        outcomes = []
        for winner in winners:
            time_us, kernels = self.compiles(winner)
            outcomes.append(Outcome(winner=winner, samples=_times(time_us), kernels=kernels))
        return TrialResult(tuple(outcomes))

    def close(self) -> None:
        """There is no process to end."""


def _times(us: float) -> Samples:
    return Samples((us,) * 3)


def gelu(winner: Winner) -> tuple[float, RegionKernels]:
    """State what a GELU costs: 60 us fused where the kernel spills, 5 us where it does not."""
    if not winner.fused:
        return BARE_US[winner.choice] + ALONE_US, RegionKernels(2, None, None, is_as_decided=True)
    spills = 22 if winner.choice == SPILLING else 0
    time_us = BARE_US[winner.choice] + (60.0 if spills else 5.0)
    return time_us, RegionKernels(1, spills, 255, is_as_decided=True)


def unfusable(winner: Winner) -> tuple[float, RegionKernels]:
    """State that inductor fuses nothing: the way that asks for it would be the fastest."""
    time_us, kernels = gelu(winner)
    return time_us, replace(kernels, is_as_decided=not winner.fused)


def measured(compiles: Compile, top_k: int = 1) -> tuple[Tuned, StatedProcess]:
    """Return the row for `KEY`, measured on a machine that nothing disturbs."""

    @contextlib.contextmanager
    def measuring() -> Iterator[Callable[[], bool]]:
        yield lambda: False

    process = StatedProcess(compiles)
    stated: Any = process
    tuner = Tuner(torch.device("cpu"), Method(fused_top_k=top_k), {}, process=stated)
    watch: Any = SimpleNamespace(measuring=measuring, clocks=[])
    tuner.watch = tuner.bare.watch = watch
    candidates = tuple(map(Candidate, BARE_US))
    question = GemmQuestion(
        GemmProblem.of_key(KEY), "cpu", candidates, library=LIBRARY, region=REGION
    )
    tuned = tuner.measure(question)
    assert tuned is not None
    return tuned, process


def decided(row: Row) -> tuple[Winner, bool | None]:
    return row.winner.choice, row.winner.fused


def test_a_tile_that_does_not_spill_follows_the_one_that_does() -> None:
    """The fastest tile alone spills when fused; the next with less output in a warp wins fused."""
    tuned, process = measured(gelu)
    assert decided(tuned.row) == (SLOWER, True)
    evidence = tuned.row.evidence
    assert (evidence.time_us, evidence.kernels, evidence.library_kernels) == (111.0, 1, 2)
    assert (evidence.spills, evidence.scope) == (0, Scope.FUSED)
    ways = [replace(SPILLING, fused=True), replace(SPILLING, fused=False)]
    first = [LIBRARY]
    assert process.asked == [first, [*first, *ways], [*first, *ways, replace(SLOWER, fused=True)]]


def test_without_spills_no_tile_is_added() -> None:
    """Two candidates in the region are two when neither spills more than inductor accepts."""

    def never_spilling(winner: Winner) -> tuple[float, RegionKernels]:
        time_us, kernels = gelu(winner)
        return time_us, replace(kernels, spills=8 if winner.fused else None)

    tuned, process = measured(never_spilling)
    assert len(process.asked) == 2
    assert decided(tuned.row) == (SPILLING, False)


def test_a_row_never_says_fused_where_nothing_was() -> None:
    """Although its stated time is the best, a way that inductor did not compile cannot win."""
    tuned, _ = measured(unfusable, top_k=4)
    assert decided(tuned.row) == (SPILLING, False)
    assert (tuned.row.evidence.time_us, tuned.row.evidence.kernels) == (141.0, 2)
    assert not any(timing.winner.fused for timing in tuned.timings)
    assert tuned.row.evidence.rejected == ()
