"""`Tuner`: measures inductor's questions while a table is built, and chooses the winners.

GEMM selections on a GPU are measured in a child process: first each candidate bare, then the best
of them fused, with the region that inductor compiles with the GEMM. Questions whose operands exist
in this process only (launch configs, padding, packed CPU weights) are measured here.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Self

import torch

from warmup.core.device import CallCost
from warmup.core.events import logger
from warmup.core.phases import BuildClock, BuildStage
from warmup.core.rows import (
    CandidateSource,
    Family,
    Method,
    OptionValue,
    Rejection,
    Search,
    SearchCounts,
    Winner,
)
from warmup.core.trial import LiveSearch, Outcome, Samples, TimedCall, Trial, Tuned
from warmup.keys.gemm import NO_EPILOGUE, GemmProblem
from warmup.keys.question import (
    CallsQuestion,
    GemmQuestion,
    Question,
    RegionQuestion,
    SearchQuestion,
    SmallerSize,
)
from warmup.keys.registry import kind_of, operations_of
from warmup.keys.registry import work_of as work_of_key
from warmup.measuring.clock import cost_of
from warmup.measuring.machine import MachineWatch
from warmup.measuring.row_bits import bits_of_rows, disturb_samples, fill_samples
from warmup.measuring.selection import (
    SizeOutcomes,
    doubtful_us,
    is_within_bound,
    make_fused_row,
    make_row,
    rivals_of,
    select_for_range,
    with_bare_range_regret,
    with_range_regret,
)
from warmup.measuring.trial import run_trial, time_calls, time_search, with_narrow_band
from warmup.measuring.trial_process import TrialNotRunError, TrialProcess, own_command
from warmup.table.invariance import NO_CLASS, RowClasses, can_hold
from warmup.table.schema import Policy
from warmup.tuning.progress import BuildEstimate
from warmup.tuning.trials import (
    BucketShares,
    PeakBounds,
    RegionQuestions,
    RowMaker,
    WaitingFused,
    WaitingQuestion,
    alone,
    as_decided,
    bare_trial,
    contenders_of,
    opened,
    region_trial,
    why_lost,
    work_of,
)

# `choose_for_range`: the winner for a GEMM with a range of sizes, measured at several of them.

RunQuestion = Callable[[GemmQuestion], Sequence[Outcome]]


def choose_for_range(
    question: GemmQuestion,
    outcomes: Sequence[Outcome],
    tuned: Tuned,
    method: Method,
    run: RunQuestion,
) -> tuple[Winner, tuple[SizeOutcomes, ...]]:
    """Return the winner for the range of *question*, and the outcomes at each measured size."""
    # *tuned* and *outcomes* are those at the question's own size, the last of the sizes; the best
    # candidates are run at the smaller ones. A winner other than that of *tuned* was run once more
    # at the question's own size, alone, and its result was right.
    assert question.size is not None
    assert question.library is not None
    winner = tuned.row.winner
    barred = {question.library} if bars(tuned, question.library) else ()
    rivals = rivals_of(outcomes, winner, question.library)
    smaller = [_run_at(question, size, rivals, run) for size in question.smaller_sizes]
    while True:
        sizes = (*smaller, SizeOutcomes(question.size, outcomes))
        chosen = select_for_range(winner, sizes, question.library, method, barred)
        if chosen == winner:
            return winner, sizes
        try:
            alone = tuple(one for one in question.candidates if one.winner == chosen)
            (confirmed,) = run(replace(question, candidates=alone))
        except TrialNotRunError as error:
            logger.warning(
                "%s is kept, not %s: %s: %s", winner, chosen, question.problem.key, error
            )
            return winner, sizes
        outcomes = [confirmed if outcome.winner == chosen else outcome for outcome in outcomes]
        if confirmed.time_us is not None:
            logger.debug("%s, not %s, along the range: %s", chosen, winner, question.problem.key)
            return chosen, (*smaller, SizeOutcomes(question.size, outcomes))
        smaller = [  # without the candidate, which was rejected, however fast
            replace(size, outcomes=[one for one in size.outcomes if one.winner != chosen])
            for size in smaller
        ]


def bars(tuned: Tuned, library: Winner) -> bool:
    """Return whether the digest that the winner of *tuned* must have keeps *library* from winning.

    False without a digest: then all candidates may win.
    """
    bits = tuned.row.evidence.bits
    own_bits = next((one.bits for one in tuned.timings if one.winner == library), None)
    return bits is not None and (own_bits != bits or not can_hold(tuned.key, library))


def _run_at(
    question: GemmQuestion, smaller: SmallerSize, rivals: Sequence[Winner], run: RunQuestion
) -> SizeOutcomes:
    asked = replace(smaller.question_for(rivals), library=question.library)
    try:
        return SizeOutcomes(smaller.size, run(asked))
    except TrialNotRunError as error:
        logger.warning("not timed at %d: %s: %s", smaller.size, question.problem.key, error)
        return SizeOutcomes(smaller.size, ())


# `vary`: algorithms of a library, made from the fastest while such are faster.

_STEPS: Final = 4  # seen on an H200: the last of three steps still gained 1 %
_STEP_GAIN: Final = 1.01
_RACED: Final = 8


def vary(
    question: GemmQuestion,
    outcomes: Sequence[Outcome],
    run: Callable[..., Sequence[Outcome]],
    is_worth: Callable[[str, float | None], bool],
) -> Sequence[Outcome]:
    """Return *outcomes* with those of algorithms like the fastest, while such are faster.

    Trials of their own, by *run*, screen these as long as *is_worth* says so. In one more trial the
    fastest of all candidates are timed to the end beside the library's: others cannot win.
    """
    key, library, counts = question.problem.key, question.library, question.searched
    if question.vary is None or (counts and counts.search is Search.IMPORTED):
        return outcomes
    assert library is not None
    timed = {one.winner: one for one in outcomes}
    candidates = {one.winner: one for one in question.candidates}

    def trial(winners: Iterable[Winner], *, only_screens: bool) -> dict[Winner, Outcome]:
        asked = tuple(map(candidates.__getitem__, dict.fromkeys((library, *winners))))
        result = run(replace(question, candidates=asked), only_screens=only_screens)
        return {one.winner: one for one in result}

    try:
        for _ in range(_STEPS):
            fastest = [one for one in fastest_first(timed.values()) if one.family is Family.BLAS]
            if not fastest or not is_worth(key, timed[fastest[0]].time_us):
                break
            if not (fresh := {one.winner: one for one in question.vary(fastest)}):
                break
            candidates |= fresh
            screened = trial([fastest[0], *fresh], only_screens=True)
            timed |= {winner: screened[winner] for winner in fresh}
            times_us = [screened[winner].time_us or math.inf for winner in fresh]
            if min(times_us) * _STEP_GAIN > (screened[fastest[0]].time_us or 0.0):
                break
        if len(timed) == len(outcomes):
            return outcomes
        final = trial(fastest_first(timed.values())[:_RACED], only_screens=False)
    except TrialNotRunError as error:
        logger.warning("algorithms of %s are not varied: %s", key, error)
        return outcomes
    if final[library].time_us is None:
        return outcomes
    return [final.get(winner) or replace(one, is_final=False) for winner, one in timed.items()]


def fastest_first(outcomes: Iterable[Outcome]) -> list[Winner]:
    """Return the winners of *outcomes* that have a time, the fastest first."""
    timed = (one for one in outcomes if one.time_us)
    return [one.winner for one in sorted(timed, key=lambda one: one.time_us or math.inf)]


def with_variations(question: GemmQuestion, tuned: Tuned) -> SearchCounts | None:
    """Return the counts of *question*, with the algorithms in *tuned* that it did not offer."""
    counts, offered = question.searched, {one.winner for one in question.candidates}
    timed = {one.winner for one in tuned.timings if one.winner.family is Family.BLAS}
    if counts is None or timed <= offered:
        return counts
    made = (CandidateSource.VARIATIONS, len(timed - offered))
    return replace(counts, added=(*counts.added, made))


# `SearchResults`: what came of the launch searches of a build, for kernels of equal code.


@dataclass(frozen=True, slots=True)
class FoundConfigs:
    """The outcomes of a search, its control, and how many candidates were tried."""

    outcomes: tuple[Outcome, ...]
    library: Winner
    counts: SearchCounts
    is_disturbed: bool
    is_whole: bool = True

    @property
    def time_us(self) -> float:
        return min((one.time_us for one in self.outcomes if one.time_us), default=math.inf)


@dataclass(slots=True)
class SearchResults:
    """What came of launch searches, by kernel, with the candidates of default mode."""

    _results: dict[str, tuple[tuple[Winner, ...], FoundConfigs]] = field(default_factory=dict)
    _with_row: set[str] = field(default_factory=set)

    def keep(
        self, key: str, search: LiveSearch, result: FoundConfigs, *, has_row: bool = True
    ) -> None:
        """Keep the *result* of *search* for kernels like that of *key*, unless the search was cut.

        With *has_row* the row of *key* is made of it: `known` returns None for it from now on, so
        that a row that is to be measured again is measured again.
        """
        if not search.is_cut():
            self._results[kind_of(key).measured_once(key)] = search.listed, result
        if has_row:
            self._with_row.add(key)

    def known(
        self, key: str, search: LiveSearch, is_worth: Callable[[float], bool]
    ) -> FoundConfigs | None:
        """Return what came of the search of an equal kernel; None where *search* is to be timed.

        That is so where default mode lists other candidates for the two, where times were
        disturbed, and where the listed candidates alone were timed and *is_worth* wants more.
        """
        listed, result = self._results.get(kind_of(key).measured_once(key), ((), None))
        if result is None or result.is_disturbed or key in self._with_row:
            return None
        if listed != search.listed or result.library == search.banned:
            return None
        if not result.is_whole and is_worth(result.time_us):
            return None
        logger.debug("searched before, under another name: %s", key)
        kept = tuple(one for one in result.outcomes if one.winner != search.banned)
        return replace(result, outcomes=kept)


# `BareTrials`: trials of GEMMs without their epilogue, each measured once for all epilogues.

# A GEMM, the size of a range that it was timed at, its candidates, and how they were timed.
_Tried = tuple[GemmProblem, int | None, tuple[Winner, ...], tuple[bool, bool]]


@dataclass
class BareTrials:
    """Trials of GEMMs without their epilogue, in *process*, or here with live calls.

    With ``notes_bits`` each outcome has the digest of its rows.
    """

    process: TrialProcess
    method: Method
    tolerance: Mapping[str, float]
    seed: int
    bounds: PeakBounds
    watch: MachineWatch
    notes_bits: bool = False
    _results: dict[_Tried, Sequence[Outcome]] = field(default_factory=dict)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Callable[[], bool]]:
        """Measure as `MachineWatch.measuring` does; no result that was disturbed is kept."""
        before = len(self._results)
        with self.watch.measuring() as is_disturbed:
            yield is_disturbed
        if is_disturbed():
            for tried in [*self._results][before:]:
                del self._results[tried]

    def forget(self) -> None:
        self._results.clear()

    def run(
        self, question: GemmQuestion, *, bars_library: bool = False, only_screens: bool = False
    ) -> Sequence[Outcome]:
        """Run the trial of the bare GEMM, unless the same GEMM was measured before.

        In the child process the epilogue makes no difference; in this process a CPU's library call
        may contain it. A result whose control failed as it may not the next time is not kept: there
        is no row, and a later layer or bucket tries again.
        """
        live, count = question.live, len(question.candidates)
        problem = question.problem if live else replace(question.problem, epilogue=NO_EPILOGUE)
        winners = tuple(one.winner for one in question.candidates)
        tried = problem, question.size, winners, (bars_library, only_screens)
        if (known := self._results.get(tried)) is not None:
            return known
        started = time.monotonic()
        floor = self.bounds.floor_us(work_of(question))
        trial = replace(
            bare_trial(question, self.method, self.tolerance, self.seed),
            notes_bits=self.notes_bits,
            bars_library=bars_library,
            only_screens=only_screens,
            floor_us=floor,
            doubtful_us=None if floor is None else doubtful_us(floor),
        )
        result: Sequence[Outcome]
        if live:
            with torch.no_grad():
                result = run_trial(trial, live.make_sets, live.make_call)
        else:
            result = self.process.run(trial)
        control = next((one for one in result if one.winner == trial.library), None)
        rejection = None if control is None else control.rejection
        if rejection is None or not rejection.may_be_noise:
            self._results[tried] = result
        seconds = time.monotonic() - started
        at_size = "" if question.size is None else f" at {question.size}"
        logger.debug("%d candidates in %.2f s%s: %s", count, seconds, at_size, problem.key)
        return result


@dataclass
class Tuner:
    """Measures questions on *device* by *method*. As a context manager it ends its child process.

    ``tolerance`` is the largest relative L2 error against the reference, by dtype of the output,
    and ``options`` are the inductor options that serving shares. A row whose measurement other
    processes disturbed has the library default. ``region_questions`` keeps questions that only a
    compiled region can answer, ``fused`` GEMMs that were measured alone while it ``defers`` their
    regions. Rows that ``shares`` calls not worth it are searched among default mode's candidates.
    For the keys in ``apart`` nothing is fused into a template: in the model inductor does not fuse
    what it fuses in the region alone. ``prefers_fewer_kernels`` is for a bucket that the host
    limits, as no bucket of a server is that ``replays_graphs``. With ``row_classes`` the winners
    for a weight have the same bits in all buckets.
    """

    device: torch.device
    method: Method
    tolerance: Mapping[str, float]
    seed: int = 0
    process: TrialProcess = field(default_factory=lambda: TrialProcess(own_command()))
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    region_questions: RegionQuestions = field(default_factory=RegionQuestions)
    apart: set[str] = field(default_factory=set)
    prefers_fewer_kernels: bool = False
    replays_graphs: bool = False
    shares: BucketShares | None = None
    defers: bool = False
    row_classes: RowClasses | None = None
    fused: dict[str, WaitingFused] = field(default_factory=dict)
    searches: SearchResults = field(default_factory=SearchResults)
    clock: BuildClock = field(default_factory=BuildClock)
    estimate: BuildEstimate = field(default_factory=BuildEstimate)
    bounds: PeakBounds = field(init=False)
    rows: RowMaker = field(init=False)
    watch: MachineWatch = field(init=False)
    bare: BareTrials = field(init=False)

    def __post_init__(self) -> None:
        self.clock.on_left = self.estimate.done
        self.bounds = PeakBounds(self.device, self.method.l2, device_lock=self._device_lock)
        self.rows = RowMaker(self.method, self.bounds)
        self.watch = MachineWatch(
            self.device, own=lambda: frozenset({os.getpid(), *filter(None, [self.process.pid])})
        )
        measured = self.process, self.method, self.tolerance, self.seed
        notes_bits = self.row_classes is not None
        self.bare = BareTrials(*measured, self.bounds, self.watch, notes_bits)

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            self.process.start()  # it imports torch while this process loads the model
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.process.close()

    def measure(self, question: Question) -> Tuned | None:
        """Return the row for *question*; None when nothing could be measured, or its region waits.

        A search without a row of its own gives a row with the winner's time alone.
        """
        match question:
            case GemmQuestion():
                return self._measure_gemm(question)
            case CallsQuestion():
                return self._measure_calls(question)
            case SearchQuestion():
                return self._measure_search(question)
            case RegionQuestion():
                return self._measure_region(question)

    def _measure_gemm(self, question: GemmQuestion) -> Tuned | None:
        if question.searched is not None:
            logger.debug("searched %s: %s", question.searched, question.problem.key)
        with self.clock.phase(BuildStage.BARE_TRIALS):
            tuned = self._measure_bare(question)
        if tuned is None:
            return None
        tuned = replace(tuned, searched=with_variations(question, tuned))
        if question.region is None or not self.method.fused_top_k:
            return tuned
        waiting = WaitingFused(question, tuned)
        if self.defers and not self.region_questions.is_measuring:
            self.fused[question.problem.key] = waiting
            self.process.prepare([*self.process.coming, self._fused_trial(waiting)])
            return alone(tuned)
        ((_, tuned),) = self.measure_fused_all([waiting])
        return tuned

    def is_worth(self, key: str, time_us: float | None) -> bool:
        """Whether *key* is searched further than default mode's candidates, which take *time_us*.

        In a region nothing is: its variants differ by more.
        """
        if self.region_questions.is_measuring and self.shares is not None:
            return False
        return self.deserves(key, time_us) and not self.estimate.is_over

    def deserves(self, key: str, time_us: float | None) -> bool:
        return self.shares is None or self.shares.is_worth(key, time_us)

    def postponed(self, tuned: Tuned) -> Tuned:
        """Return *tuned*, the cheap answer of a build whose budget is spent, for the next build.

        Without a budget it is final: its share was too small when its search was cut.
        """
        key, time_us = tuned.key, tuned.row.evidence.time_us
        if not self.estimate.is_limited or not self.deserves(key, time_us):
            return tuned
        share = 0.0 if self.shares is None else self.shares.share_of(key, time_us)
        self.estimate.postponed[key] = share
        return opened(tuned)

    def _measure_bare(self, question: GemmQuestion) -> Tuned | None:
        library = question.library
        assert library is not None
        if not self.rows.is_wanted(question.problem.key, library):
            return None
        try:
            with self.bare.measuring() as is_disturbed:
                result, run = self._run_bare(question)
        except TrialNotRunError as error:
            self.rows.give_up(question.problem.key, library, str(error))
            return None
        clocks = (one.clock_mhz for one in result)
        self.watch.clocks += [next(filter(None, clocks))] if any(clocks) else []
        if not result:  # of a survey, or without a candidate that is like those of other buckets
            return None
        uncompiled = (
            Outcome(winner=winner, rejection=Rejection.COMPILE, said=reason)
            for winner, reason in question.uncompiled.items()
        )
        row_for = partial(
            self.rows.row_for,
            question.problem.key,
            library=library,
            work=work_of(question),
            search=question.searched.search if question.searched else Search.DEFAULT,
        )
        outcomes = (*result, *uncompiled)
        tuned = row_for(outcomes, is_disturbed=is_disturbed())
        if tuned is None or not question.smaller_sizes:
            return tuned
        with self.bare.measuring() as is_disturbed:
            winner, sizes = choose_for_range(question, outcomes, tuned, self.method, run)
        if is_disturbed():
            tuned = row_for(outcomes, is_disturbed=True) or tuned
        elif winner != tuned.row.winner and not tuned.row.evidence.is_unstable:
            tuned = row_for(sizes[-1].outcomes, winner=winner) or tuned
        return with_range_regret(tuned, sizes, library, self.method)

    def _run_bare(self, question: GemmQuestion) -> tuple[Sequence[Outcome], RunQuestion]:
        # With ``row_classes`` they are screened first. Those with the digest of the weight are
        # timed then, beside the library's, which is the control whatever its digest. There is no
        # outcome where no candidate has the digest, and none of a survey, which notes the digests.
        classes = self.row_classes
        if classes is None:
            outcomes = self.bare.run(question)
            return vary(question, outcomes, self.bare.run, self.is_worth), self.bare.run
        key, library = question.problem.key, question.library
        screened = self.bare.run(question, only_screens=True)
        members = classes.members(key, screened)
        if key in classes.lacking:
            assert library is not None
            self.rows.give_up(key, library, NO_CLASS)
        if not members:
            return (), self.bare.run
        bits = classes.of(key, screened)

        def run(asked: GemmQuestion) -> Sequence[Outcome]:
            return [
                replace(one, rejection=Rejection.WRONG, said=NO_CLASS)
                if one.bits != bits and one.winner != library and one.rejection is None
                else one
                for one in self.bare.run(asked, bars_library=library not in members)
            ]

        kept = {*members, library}
        asked = tuple(one for one in question.candidates if one.winner in kept)
        return run(replace(question, candidates=asked)), run

    def measure_fused_all(
        self, waiting: Sequence[WaitingFused]
    ) -> Iterator[tuple[WaitingFused, Tuned]]:
        """Yield each of *waiting* with its row, while regions of the next are compiled."""
        # The row is the bare one where no candidate could be timed in the region.
        trials = [self._fused_trial(one) for one in waiting]
        self.process.prepare(trials)
        for one, trial in zip(waiting, trials, strict=True):
            with self.clock.phase(BuildStage.FUSED_TRIALS):
                tuned = self._measure_fused(one, trial)
            yield one, replace(tuned, searched=one.bare.searched)

    def _fused_trial(self, waiting: WaitingFused) -> Trial:
        question, bare = waiting.question, waiting.bare
        assert question.library is not None
        assert question.region is not None
        library, bars_library = question.library, bars(bare, question.library)
        fuses = question.problem.key not in self.apart
        contenders = contenders_of(
            *(bare, library, self.method), fuses=fuses, bars_library=bars_library
        )
        trial = region_trial(
            *(question, question.region, self.method, self.tolerance, self.seed),
            contenders=contenders,
        )
        return replace(
            trial,
            options=self.options,
            prefers_fewer=self.prefers_fewer_kernels,
            notes_bits=self.row_classes is not None,
            bars_library=bars_library,
        )

    def _measure_fused(self, waiting: WaitingFused, trial: Trial) -> Tuned:
        question, bare, library = waiting.question, waiting.bare, trial.library
        started = time.monotonic()
        try:
            with self.watch.measuring() as is_disturbed:
                outcomes = as_decided(self.process.run(trial))
        except TrialNotRunError as error:
            self.rows.not_fused[question.problem.key] = str(error)
            return bare
        seconds = time.monotonic() - started
        logger.debug(
            "%d fused candidates in %.2f s: %s", len(outcomes), seconds, question.problem.key
        )
        work = work_of(question)
        fused = make_fused_row(
            *(bare, outcomes, library, self.method),
            work=work,
            peaks=self.bounds.bounding(work),
            is_disturbed=is_disturbed(),
            prefers_fewer=trial.prefers_fewer,
        )
        if fused is None or outcomes[0].time_us is None:
            self.rows.not_fused[question.problem.key] = outcomes[0].said or "no candidate ran"
            return bare
        if not is_within_bound(fused.row.winner, bare):
            self.rows.not_fused[question.problem.key] = (
                f"{fused.row.winner} is too slow at a size of the range"
            )
            return bare
        return with_bare_range_regret(bare, fused)

    def _measure_calls(self, question: CallsQuestion) -> Tuned | None:
        key, library, calls = question.problem.key, question.library, question.calls
        if not self.rows.is_wanted(key, library):
            return None
        if not calls:
            timed = {winner: us for winner, us in question.times_us.items() if 0 < us[0] < math.inf}
            outcomes = [
                Outcome(winner=winner, samples=Samples(timed[winner]))
                if winner in timed
                else Outcome(winner=winner, rejection=Rejection.LAUNCH, said="its tuner failed it")
                for winner in question.times_us
            ]
            fastest = min(timed, key=timed.__getitem__, default=None)
            return self.rows.row_for(key, outcomes, library, winner=fastest)
        with self.clock.phase(BuildStage.BARE_TRIALS), self.watch.measuring() as is_disturbed:
            outcomes = time_calls(calls, library, self.device, self.method)
        return self.rows.row_for(key, outcomes, library, is_disturbed=is_disturbed())

    def _measure_search(self, question: SearchQuestion) -> Tuned | None:
        key, search, method = question.problem.key, question.search, with_narrow_band(self.method)
        if not question.makes_row:
            found = self._search(key, search)
            self.searches.keep(key, search, found, has_row=False)
            return make_row(
                *(key, found.outcomes, found.library, method), is_disturbed=found.is_disturbed
            )
        if not self.rows.is_wanted(key, search.listed[0]):
            return None
        known = self.searches.known(key, search, partial(self.is_worth, key))
        found = known or self._search(key, search)
        self.searches.keep(key, search, found)
        alike = self._alike(key, search, found)
        if alike is None:
            return None
        found = alike
        tuned = self.rows.row_for(
            *(key, found.outcomes, found.library),
            is_disturbed=found.is_disturbed,
            work=work_of_key(key) if operations_of(key) else None,
            method=method,
        )
        if tuned is None:
            return None
        tuned = replace(tuned, searched=found.counts)
        is_cut = not found.is_whole and not self.region_questions.is_measuring
        return self.postponed(tuned) if is_cut else tuned

    def _alike(self, key: str, search: LiveSearch, found: FoundConfigs) -> FoundConfigs | None:
        # None where no candidate has the digest, and of a survey, which notes the digests. Without
        # ``row_classes``, and for candidates that change no bits, it is *found* itself.
        classes = self.row_classes
        if classes is None or search.samples is None:
            return found
        outcomes = [replace(one, bits=_digest_of(search, one)) for one in found.outcomes]
        members = classes.members(key, outcomes)
        if key in classes.lacking:
            self.rows.give_up(key, found.library, NO_CLASS)
        if not members:
            return None
        ordered = sorted(
            (one for one in outcomes if one.winner in members),
            key=lambda one: (one.winner != found.library, one.time_us),
        )
        calls = {one.winner: search.calls[one.winner] for one in ordered}
        again = self._search(key, replace(search, listed=(ordered[0].winner,), calls=calls))
        alike = tuple(replace(one, bits=ordered[0].bits) for one in again.outcomes)
        return replace(again, outcomes=alike, counts=found.counts)

    def _search(self, key: str, search: LiveSearch) -> FoundConfigs:
        started, method = time.monotonic(), with_narrow_band(self.method)
        floor_us = self.bounds.floor_us(operations_of(key))
        stage, is_whole = self.clock.phase(kind_of(key).stage), True

        def is_worth(time_us: float) -> bool:
            nonlocal is_whole
            is_whole = self.is_worth(key, time_us)
            return is_whole

        with stage, self.watch.measuring() as is_disturbed, torch.no_grad():
            outcomes, library = time_search(
                *(search, self.device, method, self.tolerance, floor_us), is_worth=is_worth
            )
        counts, seconds = search.counts(), time.monotonic() - started
        logger.debug("searched %s in %.2f s: %s", counts, seconds, key)
        found = FoundConfigs(tuple(outcomes), library, counts, is_disturbed=is_disturbed())
        return replace(found, is_whole=is_whole)

    def _device_lock(self) -> AbstractContextManager[None]:
        return self.watch.device_lock()  # which whoever starts the watch sets

    def cost_of(self, call: Callable[[], object]) -> CallCost | None:
        if self.device.type == "cpu":
            return None
        with self.clock.phase(BuildStage.JUDGING):
            return cost_of(call, self.device)

    def _measure_region(self, question: RegionQuestion) -> Tuned | None:
        # That row has the times of inductor's own calls, and ``rows.not_fused`` says why.
        if not self.region_questions.is_open_to(question.key):
            return None
        if not self.rows.is_wanted(question.key, question.library):
            return None
        outcomes, was_disturbed, reason = list[Outcome](), False, question.reason

        def time_all(calls: Mapping[Winner, TimedCall]) -> list[Outcome]:
            return time_calls(calls, question.library, self.device, self.method)

        if question.calls:
            with self.watch.measuring() as is_disturbed:
                outcomes = time_all(question.calls)
                if question.region is not None and not self.region_questions.is_thorough:
                    reason = why_lost(question, outcomes, time_all, self.method)
            was_disturbed = is_disturbed()
        without_calls = replace(question, calls={}, least={})  # they hold memory
        waiting = WaitingQuestion(without_calls, outcomes, was_disturbed)
        if question.region is not None and (was_disturbed or not reason):
            reason = self.region_questions.keep(waiting)
        return self.rows.bare_variants_row(waiting, reason) if reason else None


def _digest_of(search: LiveSearch, outcome: Outcome) -> str | None:
    """Return the digest of a sample; None where samples differ, by place or by their neighbours."""
    if outcome.time_us is None or search.samples is None:
        return None
    fill_samples(*search.samples)
    (alike,) = search.written(outcome.winner)
    disturb_samples(search.samples[0])
    (beside_others,) = search.written(outcome.winner)
    bits = bits_of_rows(alike.flatten(1))
    return bits if bits == bits_of_rows(beside_others.flatten(1), step=2) else None


def make_tuner(policy: Policy, device: torch.device, since: float | None = None) -> Tuner:
    """Return a tuner that measures on *device* as *policy* says; its clock begins at *since*."""
    timing = policy.timing
    process = TrialProcess(own_command(workers=timing.fused_top_k > 0))
    return Tuner(
        *(device, timing, policy.tolerance, policy.seed),
        process=process,
        options=policy.options,
        row_classes=RowClasses() if policy.invariant else None,
        clock=BuildClock(since),
    )
