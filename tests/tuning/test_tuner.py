"""`Tuner`: rows of GEMMs from stated times, bare, in their region, and along a range."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from sample_tables import make_key, make_outcome

from warmup.core.rows import (
    L2,
    Evidence,
    Family,
    Method,
    Rejection,
    Row,
    Scope,
    Search,
    SearchCounts,
    Winner,
)
from warmup.core.trial import (
    Candidate,
    Contenders,
    LiveSearch,
    Outcome,
    Region,
    RegionKernels,
    Step,
    Trial,
    Tuned,
)
from warmup.keys.gemm import GemmProblem
from warmup.keys.kind import ProblemOfKey
from warmup.keys.question import GemmQuestion, SearchQuestion, SmallerSize
from warmup.measuring.selection import SizeOutcomes
from warmup.measuring.trial_process import TrialNotRunError
from warmup.table.invariance import RowClasses
from warmup.table.schema import TOLERANCE
from warmup.tuning import trials as row_maker
from warmup.tuning.trials import (
    MAX_SPILLS,
    PeakBounds,
    WaitingFused,
    all_variants,
    as_decided,
    contenders_of,
    next_variants,
    region_trial,
    variants_to_run,
)
from warmup.tuning.tuner import Tuner, choose_for_range, vary, with_variations

MM = "mm m={} n=512 k=256 bf16 a=row b=row out=bf16 | epilogue={}"
INT_MM = "int_mm m=64 n=512 k=256 i8 a=row b=col out=i32 | epilogue=mul(f32[64,1])"
LIBRARY = Winner(Family.EXTERN, "aten::mm")
SPLIT = Winner(Family.SUBGRAPH, "decompose_k", (("k_split", 4),))
CPU = torch.device("cpu")


def template(rows: int, columns: int = 64, warps: int = 4) -> Winner:
    kwargs = (("BLOCK_M", rows), ("BLOCK_N", columns), ("num_warps", warps))
    return Winner(Family.TEMPLATE, "triton::mm", kwargs, "0123")


SMALL, LARGE, WIDE = template(64), template(128, 128), template(128, 128, 8)


def bare_row(times_us: Mapping[Winner, float | None]) -> Tuned:
    evidence = Evidence(time_us=8, library_us=10, runner_up=None, runner_up_us=None, tried=6)
    timings = tuple(make_outcome(winner, time_us) for winner, time_us in times_us.items())
    return Tuned("k", Row(SMALL, evidence), timings)


def contenders(
    times_us: Mapping[Winner, float | None], most: int = 9, *, fuses: bool = True
) -> Contenders:
    return contenders_of(bare_row(times_us), LIBRARY, Method(fused_top_k=most), fuses=fuses)


def whole(time_us: float | None, spills: Mapping[Winner, int] | None = None) -> list[Outcome]:
    """Return the outcomes of a region: *time_us* with the library, and kernels that spill."""
    found = [make_outcome(LIBRARY, time_us)]
    for winner, count in (spills or {}).items():
        found.append(make_outcome(winner, kernels=RegionKernels(1, count, 128, is_as_decided=True)))
    return found


def test_candidates_that_cannot_win_in_the_region_are_left_out() -> None:
    """Fusing operations cannot make a kernel faster than it is bare; fastest first."""
    times_us: dict[Winner, float | None] = {template(n): float(n) for n in (64, 8, 12, 16)}
    rivals = contenders({**times_us, LIBRARY: 10.0, template(256): None})
    for flops, whole_us, left in (
        ((), 15.0, [8, 12]),
        # Other GEMMs count for four fifths of their estimated time: 32 of 46 us, which leaves 14.
        ((400,), 46.0, [8, 12]),
        # 20 us are less than 10 and 32 us: the other GEMM takes less than estimated.
        ((400,), 20.0, [8, 12, 16]),
        # A region faster than the GEMM in it was timed when the device had less to do.
        ((), 5.0, [8]),
        ((), None, []),
    ):
        region = Region(inputs=(), steps=(), outputs=(), flops=(100, *flops))
        winners = next_variants(rivals, region, whole(whole_us))
        fused = [dict(winner.kwargs)["BLOCK_M"] for winner in winners if winner.fused]
        assert fused == left, (flops, whole_us)


def test_the_fastest_algorithm_of_cublaslt_is_one_more_in_the_region() -> None:
    """Beside the others the same kernels run; no template makes room for it."""
    first, second, third = (Winner(Family.BLAS, "blas::mm", (("algorithm", n),)) for n in "123")
    times_us = {LIBRARY: 10.0, first: 7.0, second: 6.0, third: 6.5, SMALL: 8.0, LARGE: 9.0}
    rivals = contenders(times_us, 1)
    assert [winner for winner, _ in rivals.bare_us] == [second, SMALL, LARGE]
    assert [one.choice for one in variants_to_run(rivals)] == [second, SMALL, SMALL]


def test_templates_are_compiled_both_ways_where_that_may_win() -> None:
    """Near ties with the library count as faster; without its time every candidate does."""
    for library_us, faster in ((10.0, (SMALL, LARGE)), (None, (SMALL, LARGE, WIDE))):
        times_us = {LIBRARY: library_us, SMALL: 9.0, LARGE: 10.2, WIDE: 11.0}
        assert contenders(times_us).alone == faster, library_us
    times_us = {LIBRARY: 10.0, SMALL: 9.0, LARGE: 11.0, SPLIT: 12.0}
    both = replace(SMALL, fused=True), replace(SMALL, fused=False)
    ways = (*both, replace(LARGE, fused=True), SPLIT)
    assert all_variants(contenders(times_us)) == ways
    assert variants_to_run(contenders(times_us, 2)) == ways[:3]
    assert variants_to_run(contenders(times_us, fuses=False)) == (both[1], SPLIT)
    # Where nothing could be fused into a template, no outcome says that it was fused.
    kept = make_outcome(LIBRARY), make_outcome(both[1], kernels=RegionKernels(1, 0, 9, True))
    refused = make_outcome(both[0], kernels=RegionKernels(1, 0, 9, False))
    assert as_decided([refused, *kept]) == kept


def test_where_a_kernel_spills_tiles_with_less_output_in_a_thread_follow() -> None:
    """A tile of 128 x 128 spills with 4 warps: 64 x 64, and 8 warps, are added in their order."""
    others = [LARGE, template(256, 128, 8), WIDE, SMALL, SPLIT]
    times_us = {LIBRARY: 5.0, **{each: 6.0 + i for i, each in enumerate(others)}}
    for most, spills, added in ((1, 9, [WIDE]), (2, 9, [WIDE, SMALL]), (2, 8, [])):
        rivals = contenders(times_us, most)
        spilled = dict.fromkeys(variants_to_run(rivals), spills)
        follow = next_variants(rivals, Region((), (), (), (1,)), whole(99.0, spilled))
        assert list(follow) == [replace(one, fused=True) for one in added], (most, spills)
        if spills > MAX_SPILLS:  # known from another region, they are compiled with the first
            assert variants_to_run(rivals, spilled) == (*spilled, *follow), most


def test_outputs_have_the_limit_of_their_way() -> None:
    def limits_of(key: str, *casts: str) -> dict[str, float]:
        steps = tuple(
            Step("prims.convert_element_type.default", ({"dtype": name},), {}) for name in casts
        )
        question = GemmQuestion(GemmProblem.of_key(key), "cuda", (), library=LIBRARY)
        region = Region(inputs=(), steps=steps, outputs=(), flops=(1,))
        trial = region_trial(question, region, Method(), TOLERANCE, 0)
        assert trial.tolerance is not None
        return {"the product's": trial.tolerance, **trial.tolerances}

    # An integer product is exact; dequantized in bf16, the float32 after it is no better.
    limits = limits_of(INT_MM, "bfloat16", "float32")
    assert limits["the product's"] == 0
    assert limits["float32"] == limits["bfloat16"] == TOLERANCE["bf16"]
    assert limits_of(INT_MM, "float32")["float32"] == TOLERANCE["f32"]
    # Rounding to e4m3 alone is 2.4e-2; an int8 output is a rounded result, not an exact one.
    limits = limits_of(MM.format(64, "none"), "float8_e4m3fn", "int8")
    assert (limits["float8_e4m3fn"], limits["int8"]) == (5e-2, TOLERANCE["bf16"])


# Rows from a process that states times: `BARE_US` alone, and what *compiles* says in a region.

BARE_US = {LIBRARY: 104.0, LARGE: 90.0, WIDE: 106.0, SMALL: 120.0}
Compile = Callable[[Winner], tuple[float, RegionKernels]]


def gelu(winner: Winner) -> tuple[float, RegionKernels]:
    """State what a GELU costs: 60 us fused where the kernel spills, 5 us where it does not."""
    if not winner.fused:
        return BARE_US[winner.choice] + 51.0, RegionKernels(2, None, None, is_as_decided=True)
    spills = 22 if winner.choice == LARGE else 0
    time_us = BARE_US[winner.choice] + (60.0 if spills else 5.0)
    return time_us, RegionKernels(1, spills, 255, is_as_decided=True)


@dataclass
class StatedProcess:
    """A process that states times; in the first trial the control fails with ``rejection``."""

    compiles: Compile = gelu
    rejection: Rejection | None = None
    pid: int | None = None
    trials: int = 0
    regions: list[list[Winner]] = field(default_factory=list)
    coming: Sequence[Trial] = ()

    def prepare(self, trials: Sequence[Trial]) -> None:
        self.coming = trials

    def run(self, trial: Trial) -> tuple[Outcome, ...]:
        self.trials += 1
        winners = [candidate.winner for candidate in trial.candidates]
        if trial.region is None:
            outcomes = [make_outcome(winner, BARE_US[winner]) for winner in winners]
            if self.rejection and self.trials == 1:
                outcomes[0] = make_outcome(LIBRARY, rejection=self.rejection, said="no")
            return tuple(outcomes)
        outcomes, following = list[Outcome](), (trial.library,)
        while following:
            self.regions.append([*following])
            for winner in following:
                time_us, kernels = self.compiles(winner)
                outcomes.append(make_outcome(winner, time_us, kernels=kernels))
            assert trial.contenders is not None
            following = next_variants(trial.contenders, trial.region, outcomes)
        assert {one.winner for one in outcomes} <= set(winners)
        return tuple(outcomes)

    def close(self) -> None:
        pass


def make_tuner(process: StatedProcess, *disturbed: bool, top_k: int = 0) -> Tuner:
    """Return a tuner whose measurements are *disturbed* in turn, and then not."""
    states = [*disturbed]

    @contextlib.contextmanager
    def measuring() -> Iterator[Callable[[], bool]]:
        is_disturbed = states.pop(0) if states else False
        yield lambda: is_disturbed

    stated: Any = process
    tuner = Tuner(CPU, Method(fused_top_k=top_k), {"bf16": 2e-2}, process=stated)
    tuner.watch.measuring = measuring  # type: ignore[method-assign]
    return tuner


def ask(tuner: Tuner, epilogue: str, region: Region | None = None) -> Tuned | None:
    candidates = tuple(map(Candidate, BARE_US))
    problem = GemmProblem.of_key(MM.format(64, epilogue))
    return tuner.measure(GemmQuestion(problem, "cpu", candidates, library=LIBRARY, region=region))


def test_a_gemm_is_measured_once_for_all_its_epilogues_and_again_after_noise() -> None:
    """Nothing else on the machine makes a kernel that cannot be launched."""
    for rejection, disturbed, first, trials in (
        (None, False, LARGE, 1),
        (Rejection.LAUNCH, False, LARGE, 1),
        (Rejection.OUT_OF_MEMORY, False, None, 2),
        (Rejection.TIMED_OUT, False, None, 2),
        (Rejection.IMPLAUSIBLE, False, None, 2),
        (None, True, LIBRARY, 2),
    ):
        process = StatedProcess(rejection=rejection)
        tuner = make_tuner(process, disturbed)
        rows = [ask(tuner, epilogue) for epilogue in ("none", "relu")]
        assert [row and row.row.winner for row in rows] == [first, LARGE], (rejection, disturbed)
        assert process.trials == trials, (rejection, disturbed)


def fused(compiles: Compile, top_k: int = 1) -> tuple[Tuned, StatedProcess]:
    process = StatedProcess(compiles)
    tuned = ask(make_tuner(process, top_k=top_k), "gelu", Region((), (), (), (1,)))
    assert tuned is not None
    return tuned, process


def test_a_tile_that_does_not_spill_follows_the_one_that_does() -> None:
    """The fastest tile alone spills when fused; the next with less output in a warp wins fused."""
    tuned, process = fused(gelu)
    assert tuned.row.winner == replace(WIDE, fused=True)
    evidence = tuned.row.evidence
    assert (evidence.time_us, evidence.kernels, evidence.library_kernels) == (111.0, 1, 2)
    assert (evidence.spills, evidence.scope) == (0, Scope.FUSED)
    ways = [replace(LARGE, fused=True), replace(LARGE, fused=False)]
    assert process.regions == [[LIBRARY], ways, [replace(WIDE, fused=True)]]


def test_a_row_never_says_fused_where_nothing_was() -> None:
    """Although its stated time is the best, a way that inductor did not compile cannot win."""

    def unfusable(winner: Winner) -> tuple[float, RegionKernels]:
        time_us, kernels = gelu(winner)
        return time_us, replace(kernels, is_as_decided=not winner.fused, spills=0)

    tuned, process = fused(unfusable, top_k=4)
    assert tuned.row.winner == replace(LARGE, fused=False)
    assert (tuned.row.evidence.time_us, tuned.row.evidence.kernels) == (141.0, 2)
    assert not any(one.winner.fused for one in tuned.timings)
    assert (tuned.row.evidence.rejected, len(process.regions)) == ((), 2)


def test_fused_trials_are_compiled_ahead_and_one_that_fails_has_its_bare_row() -> None:
    """The process knows of all trials before it runs the first; a lost trial costs no other."""
    process = StatedProcess()
    tuner = make_tuner(process, top_k=1)
    region, run = Region((), (), (), (1,)), process.run
    waiting = []
    for epilogue in ("gelu", "relu", "none", "silu", "add(bf16[64,512])", "exp"):
        problem = GemmProblem.of_key(MM.format(64, epilogue))
        question = GemmQuestion(problem, "cpu", (), library=LIBRARY, region=region)
        waiting.append(WaitingFused(question, replace(bare_row(dict(BARE_US)), key=problem.key)))

    def run_or_fail(trial: Trial) -> tuple[Outcome, ...]:
        if "epilogue=relu" in trial.key:
            raise TrialNotRunError("for want of memory")
        return run(trial)

    process.run = run_or_fail  # type: ignore[method-assign]
    measured = list(tuner.measure_fused_all(waiting))
    assert [one for one, _ in measured] == waiting
    scopes = [tuned.row.evidence.scope for _, tuned in measured]
    assert scopes == [Scope.FUSED, Scope.BARE, *[Scope.FUSED] * 4]
    assert tuner.rows.not_fused == {waiting[1].question.problem.key: "for want of memory"}
    assert [trial.key for trial in process.coming] == [one.question.problem.key for one in waiting]


def test_a_deferred_region_is_told_to_the_process_at_once() -> None:
    """It is the trial that runs later, although other rows are known by then."""
    process, region, ran = StatedProcess(), Region((), (), (), (1,)), list[Trial]()
    tuner, run = make_tuner(process, top_k=1), process.run

    def note(trial: Trial) -> tuple[Outcome, ...]:
        ran.append(trial)
        return run(trial)

    process.run = note  # type: ignore[method-assign]
    tuner.defers = True
    assert [ask(tuner, epilogue, region) is None for epilogue in ("gelu", "relu")] == [False] * 2
    coming = process.coming
    assert ["gelu" in trial.key for trial in coming] == [True, False]
    for one in tuner.fused.values():
        later = replace(one, question=replace(one.question, known={"k": LIBRARY}))
        assert len(list(tuner.measure_fused_all([later]))) == 1
    assert ran[-2:] == [*coming]


def test_peaks_are_measured_in_the_turn_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker's times would be disturbed; it sets the lock after the tuner was made."""
    held: list[bool] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        held.append(True)
        yield
        held.append(False)

    monkeypatch.setattr(row_maker, "measured_peaks", lambda _device: held.append(held[-1]))
    tuner = Tuner(CPU, Method(l2=L2.COLD), {})
    assert isinstance(tuner.bounds, PeakBounds)
    tuner.watch.device_lock = turn
    assert tuner.bounds.peaks() is tuner.bounds.peaks() is None
    assert held == [True, True, False]


# `choose_for_range`: times are stated for the sizes 257 and 408, and for the range's end, 560.

OWN = {LIBRARY: 22.0, LARGE: 20.0, SMALL: 20.9}
GOOD = dict.fromkeys(OWN, 10.0)
BAD = {LIBRARY: 15.0, LARGE: 20.0, SMALL: 10.0}
Times = Mapping[Winner, float]


def look(
    low: Times | None,
    middle: Times | None,
    *,
    alone: float | Rejection | None = 20.9,
    bits: str | None = None,
) -> tuple[Winner, tuple[SizeOutcomes, ...], list[tuple[int | None, list[Winner]]]]:
    """Return the winner, the outcomes by size, and the runs by size."""
    # *alone* is the time of a new winner at 560. None is a size whose trial cannot be run.
    problem, candidates = GemmProblem.of_key(make_key("257..560")), tuple(map(Candidate, OWN))
    base = GemmQuestion(problem, "cpu", candidates, library=LIBRARY, size=560)
    asked: list[tuple[int | None, list[Winner]]] = []
    stated = {257: low, 408: middle}

    def ask(size: int, winners: Sequence[Winner]) -> GemmQuestion:
        return replace(base, candidates=tuple(map(Candidate, winners)), size=size)

    def run(question: GemmQuestion) -> list[Outcome]:
        winners = [one.winner for one in question.candidates]
        asked.append((question.size, winners))
        if isinstance(alone, Rejection) and question.size == 560:
            return [make_outcome(winner, rejection=alone) for winner in winners]
        times = dict.fromkeys(winners, alone) if question.size == 560 else stated[question.size]
        if times is None or (alone is None and question.size == 560):
            raise TrialNotRunError("for want of memory")
        return [make_outcome(one, times[one]) for one in winners if one in times]

    smaller_sizes = tuple(
        SmallerSize(size, lambda winners, size=size: ask(size, winners)) for size in stated
    )
    question = replace(base, smaller_sizes=smaller_sizes)
    own = tuple(make_outcome(winner, time_us, bits=bits) for winner, time_us in OWN.items())
    evidence = replace(bare_row(OWN).row.evidence, bits=bits)
    tuned = Tuned(problem.key, Row(LARGE, evidence), own)
    return *choose_for_range(question, own, tuned, Method(), run), asked


def test_a_good_winner_costs_a_trial_for_each_size() -> None:
    winner, places, asked = look(GOOD, GOOD)
    assert (winner, [place.size for place in places]) == (LARGE, [257, 408, 560])
    assert [(size, set(winners)) for size, winners in asked] == [(257, {*OWN}), (408, {*OWN})]


def test_another_winner_is_confirmed_at_the_largest_size() -> None:
    """It is run there once more, alone; where it is rejected, the others are compared without."""
    winner, places, asked = look(BAD, GOOD, alone=20.5)
    assert (winner, asked[2:]) == (SMALL, [(560, [SMALL])])
    assert {one.winner: one.time_us for one in places[-1].outcomes} == {**OWN, SMALL: 20.5}
    winner, places, asked = look(BAD, GOOD, alone=Rejection.WRONG)
    assert (winner, [winners for _, winners in asked[2:]]) == (LARGE, [[SMALL], [LIBRARY]])
    assert [one.winner for one in places[0].outcomes] == [LARGE]


def test_a_library_that_is_best_along_a_range_holds_no_digest_there() -> None:
    """Under another number of rows the library may call another kernel, whatever its bits here."""
    best = {LIBRARY: 10.0, LARGE: 20.0, SMALL: 14.0}
    assert look(best, GOOD, alone=20.5)[0] == LIBRARY
    assert look(best, GOOD, alone=20.5, bits="a" * 16)[0] == SMALL


def test_a_size_that_cannot_be_run_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="warmup"):
        winner, places, _ = look(None, GOOD)
        assert (winner, places[0]) == (LARGE, SizeOutcomes(257, ()))
        assert look(BAD, GOOD, alone=None)[0] == LARGE
    assert "not timed at 257" in caplog.text
    assert "for want of memory" in caplog.text


# -- algorithms made from the fastest -----------------------------------------------------------


def algorithm(number: int) -> Winner:
    return Winner(Family.BLAS, "blas::mm", (("algorithm", number),))


def test_algorithms_are_varied_while_that_gains() -> None:
    """Neighbours of the two fastest, until none is 1 % faster; then the fastest race the library's.

    What is not of that last trial cannot win. Nothing is lost where a trial cannot be run.
    """
    trials: list[tuple[list[int], bool]] = []
    lost = {0}

    def number(winner: Winner) -> int:
        return int(str(dict(winner.kwargs).get("algorithm", 0)))

    def near(winners: Sequence[Winner]) -> tuple[Candidate, ...]:
        known = {number(one) for one in winners}
        wanted = {number(one) + step for one in winners[:2] for step in (-1, 1)} - known
        return tuple(Candidate(algorithm(each)) for each in sorted(wanted))

    def run(question: GemmQuestion, *, only_screens: bool) -> list[Outcome]:
        winners = [one.winner for one in question.candidates]
        trials.append(([number(one) for one in winners], only_screens))
        if len(trials) in lost:
            raise TrialNotRunError("the device is lost")
        return [make_outcome(one, 5.0 + abs(number(one) - 23)) for one in winners]

    listed = tuple(map(Candidate, (LIBRARY, algorithm(20), LARGE, SMALL)))
    search = SearchCounts(search=Search.DEFAULT, listed=4)
    problem = GemmProblem.of_key(make_key("64"))
    question = GemmQuestion(problem, "cpu", listed, library=LIBRARY, searched=search, vary=near)
    before = run(question, only_screens=False)
    trials.clear()
    after = {one.winner: one for one in vary(question, before, run, lambda *_: True)}
    screened = [([0, 20, 19, 21], True), ([0, 21, 22], True), ([0, 22, 23], True)]
    assert trials == [*screened, ([0, 23, 24], True), ([0, 23, 22, 24, 21, 20, 19, 0], False)]
    assert [one for one in after if not after[one].is_final] == [SMALL]
    tuned = replace(bare_row({LIBRARY: 9.0}), timings=tuple(after.values()))
    counts = with_variations(question, tuned)
    assert counts is not None
    assert dict(counts.added) == {"variations": 5}
    for number_lost in (1, 3, 5):
        trials.clear()
        lost |= {number_lost}
        assert vary(question, before, run, lambda *_: True) == before
        lost.clear()
    trials.clear()
    imported = replace(question, searched=replace(search, search=Search.IMPORTED))
    assert vary(imported, before, run, lambda *_: True) == before
    assert vary(replace(question, vary=None), before, run, lambda *_: True) == before
    assert vary(question, before, run, lambda *_: False) == before
    assert trials == []


# -- rows with one digest for each weight ------------------------------------------------------

DIGESTS: Mapping[int, Mapping[Winner, tuple[float, str | None]]] = {  # by the number of rows
    1: {LIBRARY: (5.0, "1" * 16), SMALL: (8.0, "a" * 16), LARGE: (7.0, "b" * 16)},
    64: {LIBRARY: (9.0, "2" * 16), SMALL: (13.0, "a" * 16), LARGE: (40.0, "b" * 16)},
    256: {LIBRARY: (9.0, "2" * 16), SMALL: (13.0, "c" * 16), LARGE: (12.0, None)},
}


@dataclass
class DigestedProcess:
    """A process that states times and digests; only finalists of a whole trial can win."""

    pid: int | None = None
    ran: list[Trial] = field(default_factory=list)

    def run(self, trial: Trial) -> tuple[Outcome, ...]:
        self.ran.append(trial)
        stated = DIGESTS[GemmProblem.of_key(trial.key).m.low]
        assert trial.notes_bits
        return tuple(
            make_outcome(
                one.winner,
                stated[one.winner][0],
                bits=stated[one.winner][1],
                is_final=not trial.only_screens
                and not (trial.bars_library and one.winner == LIBRARY),
            )
            for one in trial.candidates
        )

    def prepare(self, trials: Sequence[Trial]) -> None:
        pass

    def close(self) -> None:
        pass


def test_all_buckets_get_the_digest_with_the_least_total_time() -> None:
    """A survey chooses it; the library, which is faster and sums otherwise, is the control."""
    process, classes = DigestedProcess(), RowClasses(surveys=True)
    stated: Any = process
    tuner = make_tuner(stated)
    tuner.row_classes, tuner.bare.notes_bits = classes, True

    def measure(rows: int) -> Tuned | None:
        problem = GemmProblem.of_key(MM.format(rows, "none"))
        candidates = tuple(map(Candidate, DIGESTS[rows]))
        return tuner.measure(GemmQuestion(problem, "cpu", candidates, library=LIBRARY))

    assert [measure(1), measure(64)] == [None, None]
    assert all(trial.only_screens for trial in process.ran)
    classes.surveys = False
    classes.choose()
    rows = {size: measure(size) for size in (1, 64)}
    assert len(process.ran) == 4, "the survey's trials are not run again"
    for size, tuned in rows.items():
        assert tuned is not None, size
        found = tuned.row.winner, tuned.row.evidence.bits, tuned.row.evidence.library_us
        assert found == (SMALL, "a" * 16, DIGESTS[size][LIBRARY][0]), size
        last = [trial for trial in process.ran if f"m={size} " in trial.key][-1]
        assert last.bars_library, size
        assert {one.winner for one in last.candidates} == {LIBRARY, SMALL}, size
    assert classes.lacking == {}
    assert measure(256) is None
    assert [*classes.lacking] == [MM.format(256, "none")]


def test_a_region_is_measured_with_every_candidate_where_the_library_cannot_win() -> None:
    """Nothing is left out for being slower than the library's kernel."""
    times_us: dict[Winner, float | None] = {LIBRARY: 1.0, SMALL: 9.0, LARGE: 11.0}
    given = bare_row(times_us), LIBRARY, Method(fused_top_k=9)
    rivals = contenders_of(*given, fuses=True, bars_library=True)
    region = Region(inputs=(), steps=(), outputs=(), flops=(100,))
    both = [replace(each, fused=way) for each in (SMALL, LARGE) for way in (True, False)]
    assert [*next_variants(rivals, region, whole(2.0))] == both
    assert [*next_variants(contenders_of(*given, fuses=True), region, whole(2.0))] == []


SIZES = "w=4x3x2x2 stride=2x2 padding=0x0 groups=1"
CONVOLUTION = f"convolution x={{0}}x3x8x8 {SIZES} f32 a={{1}} b=first out={{1}}"


def test_convolutions_of_every_batch_get_one_digest() -> None:
    """The library sums in another order from 8 samples on; the slower template does not."""
    classes = RowClasses(surveys=True)
    stated: Any = DigestedProcess()
    tuner = make_tuner(stated)
    tuner.row_classes = classes
    library, tile = Winner(Family.EXTERN, "aten::convolution"), template(16)
    timed = {library: 1e-4, tile: 2e-3}

    def measure(batch: int, layout: str) -> Tuned | None:
        key = CONVOLUTION.format(batch, layout)

        def written(winner: Winner) -> list[torch.Tensor]:
            ends = 0.001 * (0.0 if winner == tile else 1.0 + (batch >= 8))
            return [torch.full((batch, 5), 1.0 + ends)]

        search = LiveSearch(
            listed=(library,),
            calls={winner: lambda _, s=s: time.sleep(s) for winner, s in timed.items()},
            more=lambda _times_us: {},
            written=written,
            uncompiled={},
            counts=lambda: SearchCounts(search=Search.DEFAULT, listed=2),
            samples=(torch.empty(batch, 3, 8, 8), torch.empty(4, 3, 2, 2)),
        )
        return tuner.measure(SearchQuestion(ProblemOfKey(key), search))

    batches = {1: "first", 8: "last"}
    assert [measure(*pair) for pair in batches.items()] == [None, None]
    classes.surveys = False
    classes.choose()
    rows = [measure(*pair) for pair in batches.items()]
    assert [row and row.row.winner for row in rows] == [tile, tile]
    assert len({row and row.row.evidence.bits for row in rows}) == 1
