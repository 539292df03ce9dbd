"""`Trial`: everything needed to measure the candidates for one key; `Outcome`; `Tuned`.

Plain numbers and text, so that a trial can be sent to another process as JSON. No torch here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from warmup.core.rows import MAX_RANKED, Method, Rejection, Row, Scope, SearchCounts, Winner

# `Samples`: repeated times of one call, with their median, spread and confidence interval.

# The widest interval of a control, as a share of its median, beside which ratios mean something.
WIDEST_CONTROL: Final = 0.2
_QUARTERS: Final = 4
_TAIL_SHARE: Final = 0.025  # of a two-sided interval of 95 %


@dataclass(frozen=True, slots=True)
class Samples:
    """Times of one call in microseconds, at least one, in the order in which they were taken."""

    times_us: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.times_us)

    @property
    def spread(self) -> float:
        """The distance between the quartiles, as a share of the median; 0 below two samples."""
        if len(self.times_us) < 2 or not self.median:  # noqa: PLR2004  a single time has no spread
            return 0.0
        low, _, high = statistics.quantiles(self.times_us, n=_QUARTERS, method="inclusive")
        return (high - low) / self.median

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median, whatever the distribution of the times.

        Its ends are order statistics, with ranks from the binomial distribution (Conover, Practical
        Nonparametric Statistics, section 3.2). Below six samples it is the whole range, of less
        confidence.
        """
        return interval_of(self.times_us)

    @property
    def width(self) -> float:
        """The width of the interval, as a share of the median; 0 where the median is 0."""
        low, high = self.interval
        return (high - low) / self.median if self.median else 0.0

    def __add__(self, other: Samples) -> Samples:
        return Samples((*self.times_us, *other.times_us))


def busy_sentence(control: str, samples: Samples) -> str | None:
    """Return why *samples* of the control are no basis of a ratio; None where they are.

    Nothing but the machine changes between the times of a control, the call that others are
    compared with.
    """
    if samples.width <= WIDEST_CONTROL:
        return None
    return (
        f"no verdict: this machine is too busy: the 95 % interval of {control} is "
        f"{samples.width:.0%} of its median wide (at most {WIDEST_CONTROL:.0%})"
    )


def first_busy_sentence(controls: Iterable[tuple[str, Samples]]) -> str | None:
    """Return the `busy_sentence` of the first of *controls* that has a sentence, else None."""
    sentences = (busy_sentence(control, samples) for control, samples in controls)
    return next(filter(None, sentences), None)


def interval_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median of *values*, at least one value."""
    ordered, count = sorted(values), len(values)
    outside, below = 0.0, 0
    while (outside := outside + math.comb(count, below) / 2**count) <= _TAIL_SHARE:
        below += 1
    low = max(below - 1, 0)
    return ordered[low], ordered[count - 1 - low]


def ratios_by_round(base: Samples, own: Samples) -> list[float]:
    """Return the time of *base* over that of *own* in each round; both have as many times.

    The two times of a round are taken shortly after each other, so that a drift cancels.
    """
    return [a / b for a, b in zip(base.times_us, own.times_us, strict=True)]


def geomean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of *ratios*, at least one, all above zero."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


TimedCall = Callable[[int], object]  # makes call number i, on operand set i modulo their count
JsonObject = Mapping[str, Any]
Spec = JsonObject  # how to call a candidate; only `warmup.inductor` reads it


class Fill(StrEnum):
    """The random values of an operand: normally distributed, or their absolute values."""

    NORMAL = "normal"
    POSITIVE = "positive"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to allocate: sizes, strides and storage offset in elements, and torch's dtype."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str
    fill: Fill = Fill.NORMAL

    @property
    def span(self) -> int:
        """The storage it needs, in elements: from the first one to the last that it uses."""
        if 0 in self.sizes:
            return self.offset
        pairs = zip(self.sizes, self.strides, strict=True)
        return self.offset + 1 + sum((size - 1) * stride for size, stride in pairs)


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """An argument of a library call, as a view of the operand number ``base``."""

    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


# An argument of an operator: a number, a string, None, a list of arguments, or an object with one
# of the members {"step": i}, {"item": [i, j]} for result j of step i, {"input": i},
# {"dtype": name}, {"memory_format": name}, {"device": true}.
Argument = Any


@dataclass(frozen=True, slots=True)
class Step:
    """A call of an operator, named below ``torch.ops`` such as ``aten.mm.default``."""

    target: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]


@dataclass(frozen=True, slots=True)
class Region:
    """A GEMM, or a reduction, with the operations that may be fused into it or what follows it.

    A Triton template computes the operations that follow in the same kernel, a library call leaves
    them to another: a region is the part of the graph that shows this difference. ``steps`` are in
    order, ``outputs`` are the numbers of the steps whose results are returned, and ``flops`` counts
    the operations of each GEMM, that of the trial's own GEMM first.
    """

    inputs: tuple[TensorSpec, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    flops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice for the trial's key, and how to call it."""

    winner: Winner
    spec: Spec = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contenders:
    """The candidates that may be timed in a region, by their bare times, the fastest first.

    The first ``most`` that may win there are, and further ones where kernels of those spill.
    Templates in ``alone`` may also win with nothing fused into them; without ``fuses`` only so.
    ``library_us`` is the bare time of the library's kernel.
    """

    bare_us: tuple[tuple[Winner, float], ...]
    library_us: float | None
    alone: tuple[Winner, ...]
    most: int
    fuses: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Everything needed to check and time the candidates for one key.

    Templates take ``operands``, library calls take ``views``, and both write ``out``.
    ``tolerance`` bounds the relative L2 error against the reference of ``op`` (with ``alpha``
    and ``beta``); None checks nothing. ``tolerances`` has those of other outputs, by torch's
    dtype. ``library`` is the control. ``floor_us`` is the time at the measured peaks; a time
    over ``doubtful_us`` is measured again. Both are None without peaks.

    With a ``region`` each candidate is timed in it: ``operands`` are then the region's inputs, and
    the region is compiled under the inductor options ``options``, with the candidate for ``key``
    and with the winners in ``known`` for the other GEMMs. With ``contenders`` the library's kernel
    is timed first, and decides which of the other candidates are run. With ``prefers_fewer`` the
    host limits the calls: a candidate that ties and launches fewer kernels wins. With
    ``notes_bits`` each outcome has the digest of its rows; in a region a candidate is rejected if
    what is fused into it has other bits than a kernel of its own. With ``bars_library`` the
    library's kernel is the control, and cannot win. With ``only_screens`` no candidate is timed to
    the end.
    """

    key: str
    op: str
    device: str
    operands: tuple[TensorSpec, ...]
    views: tuple[ViewSpec, ...]
    out: TensorSpec
    candidates: tuple[Candidate, ...]
    library: Winner
    method: Method
    alpha: float = 1
    beta: float = 1
    tolerance: float | None = None
    tolerances: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    floor_us: float | None = None
    doubtful_us: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    region: Region | None = None
    options: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    known: tuple[tuple[str, Winner], ...] = ()
    contenders: Contenders | None = None
    prefers_fewer: bool = False
    notes_bits: bool = False
    bars_library: bool = False
    only_screens: bool = False


@dataclass(frozen=True, slots=True)
class RegionKernels:
    """What inductor compiled for a region with a candidate.

    ``count`` is how many kernels and library calls the generated code launches. ``spills`` and
    ``registers`` are those of each thread of the template's kernel, and ``compile_s`` the seconds
    of its compile. None where they could not be read. ``is_as_decided`` is false where inductor
    fused another way than a winner of the region says.
    """

    count: int | None
    spills: int | None = None
    registers: int | None = None
    is_as_decided: bool = True
    compile_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What measuring one candidate gave: its times and error, or why it was rejected.

    ``error`` is the largest error of an element against the reference, in units of the reference's
    root mean square. ``said`` is the text of a rejection. An outcome that is not final was timed in
    the screening only, and cannot win. ``clock_mhz`` is the SM clock after the trial. ``fused`` is
    the outcome of the same candidate within its region, which has ``kernels``. ``along_us`` has
    ``(size, time)`` at smaller sizes of a key's range, and ``bits`` is the digest of a row, see
    `warmup.measuring.row_bits`.
    """

    winner: Winner
    samples: Samples | None = None
    error: float | None = None
    rejection: Rejection | None = None
    said: str = ""
    is_final: bool = True
    kernels: RegionKernels | None = None
    clock_mhz: int | None = None
    fused: Outcome | None = None
    along_us: tuple[tuple[int, float | None], ...] = ()
    bits: str | None = None

    @property
    def time_us(self) -> float | None:
        """The median time in microseconds, None when untimed or rejected."""
        return None if self.samples is None or self.rejection else self.samples.median

    @property
    def fused_us(self) -> float | None:
        """The median time within the region, None where that was not timed or rejected."""
        return None if self.fused is None else self.fused.time_us

    @property
    def refused(self) -> Outcome:
        """The outcome that has the candidate's rejection, if there is one."""
        return self.fused if self.fused and self.fused.rejection and not self.rejection else self


@dataclass(frozen=True, slots=True)
class Tuned:
    """A finished problem of a build: its key, its row and the outcome of every candidate.

    ``searched`` counts the candidates of a GEMM selection by source, None for other decisions.
    """

    key: str
    row: Row
    timings: tuple[Outcome, ...]
    searched: SearchCounts | None = None

    def with_evidence(self, **changes: Any) -> Tuned:
        """Return this problem with *changes* of the evidence of its row."""
        evidence = replace(self.row.evidence, **changes)
        return replace(self, row=replace(self.row, evidence=evidence))

    @property
    def deciding(self) -> tuple[Outcome, ...]:
        """The outcomes as the row was measured: within the region where its scope says so."""
        if self.row.evidence.scope is not Scope.FUSED:
            return self.timings
        return tuple(one.fused for one in self.timings if one.fused is not None)


_MAX_RANKED_NAME: Final = 160


def ranking_of(tuned: Tuned) -> str:
    """Return the fastest candidates of *tuned* as the text of `Evidence.ranking`.

    They are those that were timed as the row was: ``10.5 triton::mm 64x64x32 w4; 12.1 aten::mm``.
    """
    timed = sorted(
        (round(one.time_us, 3), one.winner.short[:_MAX_RANKED_NAME])
        for one in tuned.deciding
        if one.time_us is not None
    )
    return "; ".join(f"{time_us:.6g} {name}" for time_us, name in timed[:MAX_RANKED])


class Operands(Protocol):
    """The operand sets of a trial, as torch tensors; set numbers wrap around at ``count``.

    The values of the views whose numbers are ``fixed`` must not be changed: they are weights.
    """

    count: int

    @property
    def fixed(self) -> frozenset[int]: ...

    def operands(self, number: int) -> list[Any]:
        """Return the operands of a set as templates take them."""

    def views(self, number: int) -> list[Any]:
        """Return the operands of a set as library calls take them."""

    def out(self, number: int, *, at_offset: bool = False) -> Any:
        """Return the output tensor of a set; library calls take it *at_offset* in its storage."""

    def poison(self) -> None:
        """Fill every output with NaN or the largest integer, so that unwritten parts show."""


def without_repeats(tensor: Any) -> Any:
    """Return a torch *tensor* without the dims along which it repeats, as an expanded bias does."""
    sizes = [
        size if stride else min(size, 1)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return tensor.as_strided(sizes, tensor.stride())


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """Return *trial* as JSON values, for `trial_from_json` in another process."""
    document: dict[str, Any] = msgspec.to_builtins(trial)
    return document


def trial_from_json(document: JsonObject) -> Trial:
    """Return the trial that `trial_to_json` wrote, or a msgspec.ValidationError."""
    return msgspec.convert(document, Trial)


# `LiveSearch`: a decision measured in this process, whose candidates are made step by step.


@dataclass(frozen=True, slots=True)
class LiveSearch:
    """A decision measured in this process, whose candidates are made while others are timed.

    ``listed`` are the candidates among which default mode chooses, in its order. ``more`` takes the
    microseconds of all candidates so far, infinite for a rejected one, and returns the calls of
    further candidates; without any the search is over. ``written`` calls a candidate once and
    returns copies of the tensors that it wrote. ``uncompiled`` has the candidates that did not
    compile, with the reason, and ``counts`` returns how many were tried: both grow. ``is_cut``: the
    search ended early, since another kernel is so much faster that no further candidate can matter.
    ``samples`` are the two tensors, of samples and of weights, whose product each candidate writes,
    a row for each sample; both may be overwritten when the search is over. None where the bits that
    a kernel writes do not depend on the candidate.
    """

    listed: tuple[Winner, ...]
    calls: Mapping[Winner, TimedCall]
    more: Callable[[Mapping[Winner, float]], Mapping[Winner, TimedCall]]
    written: Callable[[Winner], Sequence[Any]]
    uncompiled: Mapping[Winner, str]
    counts: Callable[[], SearchCounts]
    is_cut: Callable[[], bool] = lambda: False
    samples: tuple[Any, Any] | None = None
    banned: Winner | None = None

    def without(self, banned: Winner) -> LiveSearch:
        """Return this search without the candidate *banned*, unless that is listed first."""
        if banned == self.listed[0]:
            return self

        def kept(calls: Mapping[Winner, TimedCall]) -> dict[Winner, TimedCall]:
            return {winner: call for winner, call in calls.items() if winner != banned}

        return replace(
            self,
            listed=tuple(winner for winner in self.listed if winner != banned),
            calls=kept(self.calls),
            more=lambda times_us: kept(self.more(times_us)),
            banned=banned,
        )
