"""`verify`: whether the winners of a table are still the fastest on this device, by a sample.

A GEMM is rebuilt from its key, and its winner takes turns with the library's kernel and the
runner-up of its evidence, as candidates of a build do. A row has drifted where, twice, another of
them is faster by more than at the build, and than the noise band. All have one clock, so that
another clock is no drift.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from warmup.core.errors import BuildError, ModelError, ProblemError, SettingsError
from warmup.core.events import Emitter
from warmup.core.rows import Family, KwargValue, Row, Scope, Search, Winner
from warmup.core.text import first_line, shown
from warmup.core.trial import Outcome, Samples, Tuned, interval_of
from warmup.inductor.adapter import compile_model
from warmup.keys.question import GemmQuestion, Question
from warmup.keys.registry import kind_of
from warmup.models.loading import make_inputs
from warmup.models.rebuilt import rebuild
from warmup.table.lookup import cache_tag
from warmup.table.schema import OnMiss, PolicyOptions, Table, options_served
from warmup.tuning.build import BuildSetup, find_setup
from warmup.tuning.problems import OneKeyLookup
from warmup.tuning.tuner import Tuner, make_tuner

VERIFY_S: Final = 60.0
MOST_LOST: Final = 0.01  # of the time of the sample; above it a build pays
_OTHER_CLOCK: Final = 0.05  # times that all differ by more than this, and alike, say so
_FEWEST_ALIKE: Final = 3
_MOST_TRIALS: Final = 3  # of a row, until two say that it drifted, or a single that it did not
_CONFIRMED: Final = 2
_SAMPLE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(%?)")
_CONSTANTS: Final[Mapping[str, KwargValue]] = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRow:
    """A row that was timed again: its winner now and as recorded, and a ``rival`` that is faster.

    ``time_us`` is None where the winner fails now.
    """

    key: str
    winner: str
    time_us: float | None
    recorded_us: float
    rival: str | None = None
    rival_us: float | None = None

    @property
    def has_drifted(self) -> bool:
        return self.rival is not None or self.time_us is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What timing a sample of ``rows`` rows gave; ``left`` rows of it the time limit left.

    ``skipped`` has, by reason, the keys that cannot be timed. ``clocks_mhz`` is the clock of the
    evidence and the one seen now. ``disturbed`` measurements were taken while other processes kept
    the machine busy.
    """

    rows: int
    timed: Sequence[VerifiedRow]
    skipped: Mapping[str, Sequence[str]]
    left: int
    seconds: float
    clocks_mhz: tuple[float, float] | None = None
    disturbed: int = 0

    @property
    def drifted(self) -> Sequence[VerifiedRow]:
        return [row for row in self.timed if row.has_drifted]

    @property
    def lost(self) -> float:
        """The share of the time of the sample that faster candidates would save."""
        if any(row.time_us is None for row in self.timed):
            return 1.0
        saved = sum((row.time_us or 0.0) - (row.rival_us or 0.0) for row in self.drifted)
        return saved / (sum(row.time_us or 0.0 for row in self.timed) or 1.0)

    @property
    def pace(self) -> float | None:
        """How many times as long as recorded the winners take now, by the median of the rows."""
        ratios = self._ratios
        return statistics.median(ratios) if ratios else None

    @property
    def is_other_clock(self) -> bool:
        """Whether all rows are slower or faster by about the same factor than as recorded."""
        ratios, pace = self._ratios, self.pace or 1.0
        alike = len(ratios) >= _FEWEST_ALIKE and Samples(tuple(ratios)).spread <= _OTHER_CLOCK
        return alike and abs(pace - 1) > _OTHER_CLOCK

    @property
    def verdict(self) -> str:
        if not self.timed:
            return "unknown"
        return "rebuild" if self.lost > MOST_LOST else "keep"

    @property
    def _ratios(self) -> list[float]:
        return [row.time_us / row.recorded_us for row in self.timed if row.time_us]


def verify(
    table: Table, sample: str, *, device: str = "auto", limit_s: float = VERIFY_S
) -> Verification:
    """Time a *sample* of the rows of *table*, those that take longest first, such as ``5%`` or 50.

    No row is begun once *limit_s* seconds have passed. A SettingsError where *sample* is neither a
    share nor a number.
    """
    started = time.monotonic()
    skipped, able = dict[str, list[str]](), list[str]()
    for key, row in table.rows.items():
        reason = _why_not(key, row, table)
        (able if reason is None else skipped.setdefault(reason, [])).append(key)
    able.sort(key=lambda key: -table.rows[key].evidence.time_us)
    chosen, timed = able[: _count_of(sample, len(table.rows))], list[VerifiedRow]()
    setup = replace(find_setup(device, PolicyOptions()), policy=table.policy)
    with make_tuner(table.policy, setup.device, started) as tuner:
        while chosen and time.monotonic() - started < limit_s:
            key = chosen.pop(0)
            try:
                timed.append(_time_again(key, table, setup, tuner))
            except (BuildError, ModelError, ProblemError) as error:
                skipped.setdefault(str(error), []).append(key)
        recorded, now = (table.rows[row.key].evidence for row in timed), tuner.watch.clocks
        before = [each.clock_mhz for each in recorded if each.clock_mhz]
        clocks = (statistics.median(before), statistics.median(now)) if before and now else None
        return Verification(
            rows=len(table.rows),
            timed=timed,
            skipped=skipped,
            left=len(chosen),
            seconds=time.monotonic() - started,
            clocks_mhz=clocks,
            disturbed=tuner.watch.state().disturbed,
        )


def _count_of(sample: str, rows: int) -> int:
    match = _SAMPLE.fullmatch(sample.strip())
    if match is None or not float(match[1]) or (not match[2] and "." in match[1]):
        raise SettingsError(
            f"--verify {shown(sample)!r} is no sample of rows", "write such as 5% or 50"
        )
    return math.ceil(rows * float(match[1]) / 100) if match[2] else int(match[1])


def _why_not(key: str, row: Row, table: Table) -> str | None:
    kind = kind_of(key)
    if row.untrusted is not None:
        return "not trusted, so that no server uses them"
    if table.policy.invariant:
        return "winners of an invariant table are chosen by their bits first"
    if not kind.is_searchable or kind.rebuild is None:
        return f"rows of the kind {kind.name} need their model to be timed"
    if row.winner.family is Family.EXTERN and row.evidence.runner_up is None:
        return "the library's kernel won, and their evidence names no runner-up"
    return None


def _time_again(key: str, table: Table, setup: BuildSetup, tuner: Tuner) -> VerifiedRow:
    # A ProblemError or ModelError: it cannot be rebuilt. A BuildError says why there is no time.
    row, rebuilt = table.rows[key], rebuild(key, setup.device)
    contender = _ContenderTimer(row, tuner)
    lookup = OneKeyLookup(
        table.rows,
        OnMiss.FALLBACK,
        Emitter([]),
        tuner=contender,
        retunes=key.__eq__,
        search=Search.IMPORTED,
        searches=table.policy.searches,
        settles=True,
        times_kernels=False,
        wanted=key,
        named=[row.winner, *map(choice_named, filter(None, [row.evidence.runner_up]))],
    )
    options = options_served(table.policy, freezes=True)
    attachment = setup.inductor.attach(lookup, options, cache_tag("verify"), quiet=True)
    said = ""
    try:
        with rebuilt.settings(), torch.no_grad():
            inputs = make_inputs(rebuilt.model, (), rebuilt.bucket, setup.device, None)
            compile_model(rebuilt.model.module)(*inputs.args, **inputs.kwargs)
    except ProblemError:
        raise
    except Exception as error:  # noqa: BLE001  a compile may raise anything, and is ended early
        said = f"compiling failed: {first_line(error)}"
    finally:
        attachment.detach()
        torch.compiler.reset()
    if contender.timed is None:
        raise BuildError(contender.reason or said or "the rebuilt module asks for another key")
    return contender.timed


def choice_named(text: str) -> Winner:
    """Return the candidate that *text*, as of a runner-up, spells, without its template's hash."""
    uid, _, rest = text.removesuffix(" not fused").removesuffix(" fused").partition("(")
    pairs = (pair.partition("=")[::2] for pair in rest.removesuffix(")").split(",") if pair)
    kwargs = tuple((name, _value_of(value)) for name, value in pairs)
    named = {"aten": Family.EXTERN, "blas": Family.BLAS, "cpp": Family.CPP}
    family = named.get(uid.partition("::")[0])
    return Winner(family or Family.TEMPLATE, uid, kwargs)


def _value_of(text: str) -> KwargValue:
    return int(text) if text.removeprefix("-").isdecimal() else _CONSTANTS.get(text, text)


@dataclass
class _ContenderTimer:
    row: Row
    tuner: Tuner
    timed: VerifiedRow | None = None
    reason: str = ""

    def measure(self, question: Question) -> Tuned | None:
        if not isinstance(question, GemmQuestion):
            return None
        drifts = 0
        for _ in range(_MOST_TRIALS):
            self.tuner.bare.forget()
            timed = self._time(replace(question, smaller_sizes=()))
            drifts += timed is not None and timed.has_drifted
            if timed is not None and (not timed.has_drifted or drifts == _CONFIRMED):
                self.timed = timed
                break
        raise BuildError("the contenders were timed: nothing else of the module is compiled")

    def close(self) -> None:
        """Do nothing: the tuner is used for the next row."""

    def _time(self, question: GemmQuestion) -> VerifiedRow | None:
        evidence, own = self.row.evidence, self.row.winner
        if evidence.scope is not Scope.FUSED:
            own = own.choice  # as the control it is timed to the end, however slow it is
            question = replace(question, region=None, library=own)
        if not question.offers(own):
            self.reason = "this torch offers no kernel such as their winner"
            return None
        tuned = self.tuner.measure(question)
        outcomes = () if tuned is None else tuned.deciding if question.region else tuned.timings
        known = next((one for one in outcomes if one.winner == own), None)
        noisy = [one for one in outcomes if one.rejection and one.rejection.may_be_noise]
        if known is None or known in noisy:
            self.reason = "their winner could not be timed"
            return None
        others = [one for one in outcomes if one.time_us is not None and one is not known]
        rival = min(others, key=lambda one: one.time_us or math.inf, default=None)
        if rival is not None and known.time_us is not None:
            low, middle = _ratios(known, rival)
            if low <= self._limit < middle:
                self.reason = "their times vary too much here: other work disturbs them"
                return None
            rival = rival if low > self._limit else None
        if rival is None and noisy and known.time_us is not None:
            self.reason = "a kernel to compare their winner with could not be timed"
            return None
        return VerifiedRow(
            key=question.problem.key,
            winner=str(self.row.winner),
            time_us=known.time_us,
            recorded_us=evidence.time_us,
            rival=None if rival is None else str(rival.winner),
            rival_us=None if rival is None else rival.time_us,
        )

    @property
    def _limit(self) -> float:
        """How many times as long as the fastest the winner may take, as far as at the build."""
        evidence, band = self.row.evidence, self.tuner.method.near_tie
        behind = evidence.along[-1][1] if evidence.along else None
        if not evidence.is_unstable:
            band, rival_us = max(band, evidence.band or 0.0), evidence.runner_up_us or math.inf
            behind = behind or max(1.0, evidence.time_us / rival_us)
        return (behind or 1.0) * (1 + band)


def _ratios(own: Outcome, rival: Outcome) -> tuple[float, float]:
    """Return how many times as long as *rival* takes *own*: the lower end of 95 %, the median."""
    # Both took turns, so that what disturbs one round disturbs both in it.
    assert own.samples is not None
    assert rival.samples is not None
    pairs = zip(reversed(own.samples.times_us), reversed(rival.samples.times_us), strict=False)
    ratios = [of_own / of_rival for of_own, of_rival in pairs]
    return interval_of(ratios)[0], statistics.median(ratios)


def read_drifted(path: Path) -> tuple[str, ...]:
    """Return the keys of drifted rows in the file *path*, what `warmup check --verify --json` says.

    A SettingsError where it is no such document.
    """
    advice = "write unstable, all, or the file of `warmup check TABLE --verify 5% --json`"
    try:
        document = json.loads(path.read_bytes())
        return tuple(str(row["key"]) for row in document["verified"]["drifted"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or "names no drifted rows"
        raise SettingsError(f"--retry {shown(path)}: {reason}", advice) from error
