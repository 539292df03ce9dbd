"""The trials that answer a question of inductor's: the GEMM bare, then with its region."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from warmup.core.events import logger
from warmup.core.roofline import Peaks, Work, share_of_peak, torch_name
from warmup.core.rows import L2, Evidence, Family, Flag, Method, Row, Search, Winner
from warmup.core.trial import (
    Candidate,
    Contenders,
    Outcome,
    Region,
    Step,
    TensorSpec,
    TimedCall,
    Trial,
    Tuned,
    ViewSpec,
)
from warmup.keys.gemm import at_upper_end
from warmup.keys.launch import kernel_in
from warmup.keys.question import GemmQuestion, RegionQuestion
from warmup.keys.registry import ingredients_of
from warmup.measuring.machine import measured_peaks
from warmup.measuring.reference import NARROW_TOLERANCE, dtype_named
from warmup.measuring.selection import is_within_bound, make_row, make_variants_row, select_winner

_ATEN_NAMES: Final = {
    "mm": "mm",
    "addmm": "addmm",
    "bmm": "bmm",
    "baddbmm": "baddbmm",
    "scaled_mm": "_scaled_mm",
}
_NARROW_INTEGERS: Final = ("int8", "uint8")
_NO_TENSOR: Final = TensorSpec((), (), 0, "float32")  # the output of a trial without one
NO_EVIDENCE: Final = Evidence(  # of a row that was not measured
    time_us=math.inf, library_us=None, runner_up=None, runner_up_us=None, tried=0
)
_OTHER_GEMMS_SHARE: Final = 0.8  # of their estimated time, to be on the safe side


def bare_trial(
    question: GemmQuestion, method: Method, tolerance: Mapping[str, float], seed: int
) -> Trial:
    problem = question.problem
    assert question.library is not None
    return Trial(
        key=problem.key,
        op=problem.op,
        device=question.device,
        operands=question.operands,
        views=question.views,
        out=question.out or _NO_TENSOR,
        candidates=question.candidates,
        library=question.library,
        method=method,
        alpha=problem.alpha,
        beta=problem.beta,
        tolerance=_tolerance(problem.out, tolerance),
        seed=seed,
        environment=question.environment,
    )


def region_trial(
    question: GemmQuestion,
    region: Region,
    method: Method,
    tolerance: Mapping[str, float],
    seed: int,
    *,
    contenders: Contenders | None = None,
) -> Trial:
    """Return the trial of *region* with the library's kernel and variants of *contenders*."""
    assert question.library is not None
    variants = () if contenders is None else all_variants(contenders)
    return Trial(
        key=question.problem.at_upper_end().key,
        op=question.problem.op,
        device=question.device,
        operands=region.inputs,
        views=_whole(region.inputs),
        out=_NO_TENSOR,
        candidates=tuple(map(Candidate, (question.library, *variants))),
        library=question.library,
        method=method,
        tolerance=_tolerance(question.problem.out, tolerance),
        tolerances=_tolerances(region, question.problem.out, tolerance),
        seed=seed,
        environment=question.environment,
        region=region,
        known=tuple((at_upper_end(key), winner) for key, winner in question.known.items())
        if len(region.flops) > 1
        else (),
        contenders=contenders,
    )


def variants_trial(
    question: RegionQuestion,
    device: torch.device,
    method: Method,
    tolerance: Mapping[str, float],
    *,
    seed: int,
) -> Trial:
    region, ingredients = question.region, ingredients_of(question.key)
    assert region is not None
    return Trial(
        key=question.key,
        op=ingredients["op"],
        device=str(device),
        operands=region.inputs,
        views=_whole(region.inputs),
        out=_NO_TENSOR,
        candidates=tuple(map(Candidate, question.variants)),
        library=question.library,
        method=method,
        tolerance=_tolerance(ingredients["dtype"], tolerance),
        tolerances=_tolerances(region, ingredients["dtype"], tolerance),
        seed=seed,
        region=region,
    )


def why_lost(
    question: RegionQuestion,
    bare: Sequence[Outcome],
    time_all: Callable[[Mapping[Winner, TimedCall]], Sequence[Outcome]],
    method: Method,
) -> str:
    """Return why default mode's variant of *question* wins in any region; empty where it may lose.

    It wins against the others' ``least`` calls, timed by *time_all* unless *bare*, the times of
    inductor's own calls, have another winner.
    """
    library, least = question.library, question.least
    if least.keys() != {*question.variants} - {library} or not _wins(library, bare, method):
        return ""
    outcomes = time_all({library: question.calls[library], **least})
    if not _wins(library, outcomes, method):
        return ""
    times = (f"{one.winner.short} {one.time_us:.1f} us" for one in outcomes)
    return f"without any copy {', '.join(times)}"


def _wins(library: Winner, outcomes: Sequence[Outcome], method: Method) -> bool:
    selected = select_winner(outcomes, library, method)
    return (
        selected is not None
        and selected.outcome.winner == library
        and Flag.UNSTABLE not in selected.flags
        and all(one.time_us for one in outcomes)
    )


# `contenders_of` and `next_variants`: which candidates are timed in a region, beside the library's.

MAX_SPILLS: Final = 8  # inductor fuses no kernel that spills more (codegen/triton.py)


def contenders_of(
    bare: Tuned, library: Winner, method: Method, *, fuses: bool, bars_library: bool = False
) -> Contenders:
    """Return the candidates with a bare time; a range's are left out that are slow at a size."""
    # Those at most as slow as *library*, near ties included, may win with nothing fused into them;
    # where it cannot win itself, all may.
    times_us = {one.winner: one.time_us for one in bare.timings if one.time_us is not None}
    library_us = None if bars_library else times_us.get(library)
    limit_us = (library_us or math.inf) * (1 + method.near_tie)
    others = [
        (winner, time_us)
        for winner, time_us in sorted(times_us.items(), key=lambda one: (one[1], str(one[0])))
        if winner != library and is_within_bound(winner, bare)
    ]
    # Of cuBLASLt's algorithms, beside which the same kernels run, the fastest is one more.
    algorithms = [one for one in others if one[0].family is Family.BLAS]
    others = [one for one in others if one not in algorithms[1:]]
    return Contenders(
        bare_us=tuple(others),
        library_us=library_us,
        alone=tuple(winner for winner, time_us in others if time_us <= limit_us),
        most=method.fused_top_k + bool(algorithms),
        fuses=fuses,
    )


def all_variants(contenders: Contenders) -> tuple[Winner, ...]:
    return _variants_of(contenders, [winner for winner, _ in contenders.bare_us])


def variants_to_run(
    contenders: Contenders, spilling: Collection[Winner] = (), limit_us: float = math.inf
) -> tuple[Winner, ...]:
    """Return the variants of the first candidates whose bare time is below *limit_us*."""
    # Where kernels of them are *spilling* registers, variants of as many more candidates follow, of
    # those that hold less of the output in each thread: it is in registers while the product
    # accumulates.
    below = [winner for winner, time_us in contenders.bare_us if time_us < limit_us]
    variants = _variants_of(contenders, below[: contenders.most])
    held = min((_output_per_warp(one) for one in variants if one in spilling), default=0.0)
    less = [one for one in below[contenders.most :] if _output_per_warp(one) < held]
    return *variants, *_variants_of(replace(contenders, alone=()), less[: contenders.most])


def next_variants(
    contenders: Contenders, region: Region, outcomes: Sequence[Outcome]
) -> tuple[Winner, ...]:
    """Return the variants to run in *region* after *outcomes*, of which the library's is the first.

    None follow where the library's kernel has no time.
    """
    whole_us, tried = outcomes[0].time_us, {one.winner for one in outcomes}
    if whole_us is None:
        return ()
    limit_us = _limit_us(contenders.library_us, region, whole_us)
    variants = variants_to_run(contenders, spilling_of(outcomes), limit_us)
    return tuple(one for one in variants if one not in tried)


def spilling_of(outcomes: Iterable[Outcome]) -> set[Winner]:
    """Return the candidates of *outcomes* whose kernels spill more than inductor accepts."""
    kernels = ((one.winner, one.kernels) for one in outcomes)
    return {winner for winner, one in kernels if one and (one.spills or 0) > MAX_SPILLS}


def _limit_us(library_us: float | None, region: Region, whole_us: float) -> float:
    """Return the bare time from which on no candidate is faster than the library's in *region*."""
    # A candidate can save at most the region's time outside its GEMMs, so the limit is *whole_us*,
    # the time of the region with the library's kernel, less that of its other GEMMs. That time is
    # estimated from their operations, and not used where it would leave out the library's kernel. A
    # candidate with a smaller bare time than that is always below: the device may have been slower
    # in one trial.
    if library_us is None:
        return math.inf
    others_us = library_us * sum(region.flops[1:]) / region.flops[0]
    limit_us = whole_us - _OTHER_GEMMS_SHARE * others_us
    return limit_us if limit_us > library_us else max(whole_us, library_us)


def _variants_of(contenders: Contenders, candidates: Sequence[Winner]) -> tuple[Winner, ...]:
    """Return each of *candidates* as it is compiled: a template fused, and not fused where it pays.

    A template that is not fused has the same kernels behind it as the library default, so it can
    win only if it is faster alone. Other candidates have one way.
    """
    variants: list[Winner] = []
    for candidate in candidates:
        if candidate.family is not Family.TEMPLATE:
            variants.append(candidate)
            continue
        if contenders.fuses:
            variants.append(replace(candidate, fused=True))
        if candidate in contenders.alone:
            variants.append(replace(candidate, fused=False))
    return tuple(variants)


def as_decided(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Return *outcomes* without variants that inductor could not compile as wanted."""
    return tuple(one for one in outcomes if one.kernels is None or one.kernels.is_as_decided)


def _output_per_warp(winner: Winner) -> float:
    kwargs = dict(winner.kwargs)
    sizes = [kwargs.get(name) for name in ("BLOCK_M", "BLOCK_N", "num_warps")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return math.inf
    rows, columns, warps = (int(size or 1) for size in sizes)
    return rows * columns / warps


def _whole(operands: Sequence[TensorSpec]) -> tuple[ViewSpec, ...]:
    return tuple(
        ViewSpec(i, spec.sizes, spec.strides, spec.offset) for i, spec in enumerate(operands)
    )


def _tolerance(out: str, tolerance: Mapping[str, float]) -> float | None:
    is_integer = out.startswith(("i", "u"))
    return 0.0 if is_integer else tolerance.get(out)


def _tolerances(region: Region, out: str, tolerance: Mapping[str, float]) -> dict[str, float]:
    """Return the tolerances of the outputs of *region* that differ from that of its GEMM, *out*."""
    # A result is as exact as the narrowest float of 16 bits or more that it passed through. Of the
    # dtypes with 8 bits, floats have their own tolerance; integers are rounded results.
    casts = {value["dtype"] for step in region.steps for value in _leaves(step) if "dtype" in value}
    limits = {torch_name(name): limit for name, limit in tolerance.items()}
    passed = [limits[name] for name in (*casts, torch_name(out)) if name in limits]
    least = max(passed, default=0.0)
    return {
        **{name: max(limit, least) for name, limit in limits.items()},
        **{torch_name(name): max(limit, least) for name, limit in NARROW_TOLERANCE.items()},
        **dict.fromkeys(_NARROW_INTEGERS, least),
    }


def _leaves(step: Step) -> Iterator[Mapping[str, Any]]:
    pending = [*step.args, *step.kwargs.values()]
    while pending:
        argument = pending.pop()
        if isinstance(argument, Mapping):
            yield argument
        elif isinstance(argument, list | tuple):
            pending.extend(argument)


def work_of(question: GemmQuestion) -> Work | None:
    """Return the least work of the problem; None when its operands are unknown."""
    if question.out is None or not question.views:
        return None
    moved = sum(
        min(math.prod(view.sizes), spec.span) * dtype_named(spec.dtype).itemsize
        for view in question.views
        for spec in (question.operands[view.base],)
    )
    out, problem = question.out, question.problem
    moved += math.prod(out.sizes) * dtype_named(out.dtype).itemsize
    dtype = "tf32" if problem.fp32 == "tf32" else problem.dtype
    return Work(dtype, _flops(question), moved)


def _flops(question: GemmQuestion) -> int | None:
    from torch.utils.flop_counter import flop_registry

    name = _ATEN_NAMES.get(question.problem.op)
    formula = None if name is None else flop_registry.get(getattr(torch.ops.aten, name))
    if formula is None or question.out is None:
        return None
    shapes = [list(view.sizes) for view in question.views]
    return int(formula(*shapes, out_val=list(question.out.sizes)))


# `BucketShares`: which rows of a bucket are worth a whole search.

# Of a bucket's device time. Below it, a gain that a search may give is lost in the noise.
LEAST_SHARE: Final = 0.005
NOT_WORTH: Final = "it takes less than half a percent of the bucket's device time"
SPENT: Final = "the budget was spent"


@dataclass(frozen=True, slots=True)
class BucketShares:
    """The device time of a bucket before its rows were searched, and what it launches.

    ``counts`` says how often a graph of the bucket has each key, ``launches`` how often a call
    launches each generated kernel, by its name without a number.
    """

    device_us: float
    counts: Mapping[str, int]
    launches: Mapping[str, int]

    def share_of(self, key: str, time_us: float) -> float:
        """Return the share of *time_us* for each use of *key*.

        A kernel that the bucket did not launch by its name may be in each of its layers.
        """
        name = kernel_in(key)
        if name is None:
            count = self.counts.get(key, 1)
        else:
            count = self.launches.get(name) or max(self.launches.values(), default=1)
        return time_us * count / self.device_us

    def is_worth(self, key: str, time_us: float | None) -> bool:
        return time_us is None or self.share_of(key, time_us) >= LEAST_SHARE


# `RegionQuestions`: decisions that a compile asked for, until their regions are measured.


@dataclass(frozen=True, slots=True)
class WaitingFused:
    """A GEMM that was measured alone, until its candidates are measured with its region."""

    question: GemmQuestion
    bare: Tuned

    @property
    def time_us(self) -> float:
        """The time of the library default alone, or of the winner where that has none."""
        evidence = self.bare.row.evidence
        return evidence.library_us or evidence.time_us


def alone(bare: Tuned) -> Tuned:
    """Return the row for *bare* with nothing fused into its winner: the kernel that was timed.

    Its flag lets the next build go on where this build ends before the region was measured.
    """
    winner = bare.row.winner
    if winner.family is Family.TEMPLATE:
        winner = replace(winner, fused=False)
    return opened(replace(bare, row=replace(bare.row, winner=winner)))


def opened(tuned: Tuned) -> Tuned:
    """Return *tuned* with a row with which the next build goes on."""
    return tuned.with_evidence(flags=(*tuned.row.evidence.flags, Flag.OPEN))


@dataclass(frozen=True, slots=True)
class WaitingQuestion:
    """A question with its region, and the outcomes of inductor's own calls, if there are any."""

    question: RegionQuestion
    bare: Sequence[Outcome]
    is_disturbed: bool

    @property
    def us(self) -> float | None:
        """The time of inductor's own calls for the way of default mode."""
        library = self.question.library
        return next((one.time_us for one in self.bare if one.winner == library), None)


@dataclass
class RegionQuestions:
    """The questions that wait, by key; no key is kept twice until the next `forget`.

    ``asked`` counts how often inductor asked each since then.

    Only where somebody compiles again, which ``is_used`` says, are questions kept; elsewhere
    ``later`` gets them. With ``is_thorough`` a question waits though no variant of it can win.
    """

    is_used: bool = False
    is_thorough: bool = False
    later: Callable[[RegionQuestion], None] = lambda _question: None
    waiting: dict[str, WaitingQuestion] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    _kept: set[str] = field(default_factory=set)
    is_measuring: bool = False

    def is_open_to(self, key: str) -> bool:
        """Whether *key* is still to be kept: not twice, and not out of a region."""
        self.asked[key] += not self.is_measuring
        return not self.is_measuring and key not in self._kept

    def keep(self, waiting: WaitingQuestion) -> str:
        """Keep *waiting* until its region is measured; return why it cannot wait, if so."""
        if not self.is_used:
            self.later(waiting.question)
            return "it was asked while serving, which compiles a model once"
        self._kept.add(waiting.question.key)
        self.waiting[waiting.question.key] = waiting
        return ""

    def forget(self) -> None:
        self.waiting.clear()
        self.asked.clear()
        self._kept.clear()

    @contextlib.contextmanager
    def measuring(self) -> Iterator[list[WaitingQuestion]]:
        """Take what waits; until the context closes nothing is kept.

        A region may ask about other GEMMs in it: the model asks about them too.
        """
        taken = list(self.waiting.values())
        self.waiting.clear()
        self.is_measuring = True
        try:
            yield taken
        finally:
            self.is_measuring = False


# `RowMaker`: makes the rows of a build within `PeakBounds`, and keeps why keys have none.


@dataclass
class PeakBounds:
    """The peaks of *device*, measured when they are first needed, as bounds of times with *l2*."""

    device: torch.device
    l2: L2
    device_lock: Callable[[], AbstractContextManager[None]] = nullcontext
    known: Peaks | None = None
    _is_measured: bool = False

    def peaks(self) -> Peaks | None:
        if not self._is_measured:
            with self.device_lock():
                self.known, self._is_measured = measured_peaks(self.device), True
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return self.known

    def bounding(self, work: Work | None) -> Peaks | None:
        """Return the peaks that bound the time of *work*; None where that is unknown."""
        # With a warm L2, memory bandwidth is no bound. On a CPU, which other processes share, none
        # is.
        peaks = self.peaks() if work is not None and self.device.type == "cuda" else None
        if peaks is None or self.l2 is L2.COLD:
            return peaks
        return replace(peaks, gbps=math.inf)

    def floor_us(self, work: Work | None) -> float | None:
        peaks = self.bounding(work)
        if peaks is None or work is None:
            return None
        return share_of_peak(peaks, work.dtype, work.flops, work.moved, 1.0) or None


@dataclass
class RowMaker:
    """Makes rows of outcomes measured by *method*, with rates within *bounds*.

    ``not_tuned`` has, by key, why no candidate could be measured, ``library_rows`` a row with the
    library default for such a key, ``not_fused`` why a row was measured bare. With ``only`` no
    other keys are measured.
    """

    method: Method
    bounds: PeakBounds
    not_tuned: dict[str, str] = field(default_factory=dict)
    not_fused: dict[str, str] = field(default_factory=dict)
    library_rows: dict[str, Row] = field(default_factory=dict)
    only: frozenset[str] | None = None

    def row_for(
        self,
        key: str,
        outcomes: Sequence[Outcome],
        library: Winner,
        *,
        work: Work | None = None,
        search: Search = Search.DEFAULT,
        winner: Winner | None = None,
        is_disturbed: bool = False,
        method: Method | None = None,
    ) -> Tuned | None:
        """Return what `make_row` does, and keep why there is no row where there is none."""
        tuned = make_row(
            key,
            outcomes,
            library,
            method or self.method,
            work=work,
            peaks=self.bounds.bounding(work),
            search=search,
            winner=winner,
            is_disturbed=is_disturbed,
        )
        if tuned is None:
            library_first = sorted(outcomes, key=lambda one: one.winner != library)
            reason = next((one.said for one in library_first if one.said), "no candidate was left")
            self.give_up(key, library, reason)
        elif self.not_tuned.pop(key, None) is not None:  # a later layer or bucket asked again
            del self.library_rows[key]
        return tuned

    def variants_row(
        self,
        waiting: WaitingQuestion,
        outcomes: Sequence[Outcome],
        *,
        failure: str,
        is_disturbed: bool,
    ) -> Tuned | None:
        """Return the row for *outcomes* of the variants in the region of *waiting*."""
        # Where the way of default mode has no time, inductor's own calls decide, if there are any;
        # without any outcomes *failure* says why.
        key, library = waiting.question.key, waiting.question.library
        as_is = next((one for one in outcomes if one.winner == library), None)
        tuned = make_variants_row(
            *(key, outcomes, waiting.bare, library, self.method), is_disturbed=is_disturbed
        )
        if tuned is None or as_is is None or as_is.time_us is None:
            return self.bare_variants_row(waiting, as_is.said if as_is else failure)
        self.forget(key)
        return tuned

    def bare_variants_row(self, waiting: WaitingQuestion, reason: str) -> Tuned | None:
        """Return the row for the times of inductor's own calls; without any calls there is none."""
        key, library = waiting.question.key, waiting.question.library
        if not waiting.bare:
            logger.info("%s: not measured: %s", key, reason)  # a server prints no report of a build
            self.give_up(key, library, reason)
            return None
        self.not_fused[key] = f"inductor's own calls decided: {reason}"
        logger.info("%s: %s", key, self.not_fused[key])  # a server prints no report of a build
        return self.row_for(key, waiting.bare, library, is_disturbed=waiting.is_disturbed)

    def is_wanted(self, key: str, library: Winner) -> bool:
        if self.only is None or key in self.only:
            return True
        self.give_up(key, library, "it has no row, and only rows of the table are measured again")
        return False

    def give_up(self, key: str, library: Winner, reason: str) -> None:
        self.not_tuned[key] = reason
        self.library_rows[key] = Row(library, NO_EVIDENCE)

    @contextlib.contextmanager
    def measuring_any(self) -> Iterator[None]:
        only, self.only = self.only, None
        try:
            yield
        finally:
            self.only = only

    def forget(self, key: str) -> None:
        self.not_fused.pop(key, None)
        self.not_tuned.pop(key, None)
        self.library_rows.pop(key, None)
