"""`measure_regions`: decides about padding and split reductions by compiling what will run.

The region around an unaligned GEMM is compiled as it is and padded, and that around a reduction in
several numbers of parts, under the table of the build: GEMMs and kernels without a row are tuned on
the way, as in a bucket. Then the ways are checked against a run in higher precision, and timed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from warmup.core.error_text import first_line
from warmup.core.errors import BuildError, WarmupError, warmup_error_in
from warmup.core.events import Emitter, Event, EventName
from warmup.core.phases import BuildStage
from warmup.core.rows import Row, Winner
from warmup.core.trial import Candidate, Fill, Operands, Outcome, Trial
from warmup.inductor.adapter import compile_model
from warmup.inductor.build_caches import empty_caches
from warmup.inductor.gemm.regions import module_of
from warmup.measuring.gpu_state import sm_clock_mhz
from warmup.measuring.operands import OperandSets
from warmup.measuring.trials import run_trial
from warmup.table.lookup import OnMiss
from warmup.tuning.fused import NO_EVIDENCE, Compiled, RegionSets, region_reference
from warmup.tuning.trials import ways_trial

if TYPE_CHECKING:
    from warmup.keys.question import RegionQuestion
    from warmup.table.lookup import Lookup
    from warmup.tuning.progress import Progress
    from warmup.tuning.region_questions import WaitingQuestion
    from warmup.tuning.tuner import Tuner


class RegionTuning(Protocol):
    """What a build has to measure regions with; `warmup.tuning.bucket_compiler` implements it."""

    @property
    def tuner(self) -> Tuner:
        """What measures, and keeps the questions that wait."""

    @property
    def progress(self) -> Progress:
        """The table on disk."""

    def lookup(self, rows: Mapping[str, Row], on_miss: OnMiss, emitter: Emitter) -> Lookup:
        """Return a lookup over *rows* that measures misses with `OnMiss.TUNE`."""

    def attached(
        self, lookup: Lookup, on_miss: OnMiss, what: str = ""
    ) -> AbstractContextManager[None]:
        """Let *lookup* answer inductor while the context is open; it is compiled under *what*."""


def measure_regions(compiler: RegionTuning) -> None:
    """Measure each question that waits, and save its row.

    Where the region cannot be compiled or timed as in default mode, the times of inductor's own
    calls decide: `RowMaker.not_fused` says why. Without such calls there is no row, and
    `RowMaker.not_tuned` says why.
    """
    tuner, progress = compiler.tuner, compiler.progress
    regions = tuner.clock.phase(BuildStage.REGIONS)
    with regions, tuner.region_questions.measuring() as waiting:
        for one in waiting:
            given_up, since = set(tuner.rows.not_tuned), len(progress.tuned)
            with tuner.rows.measuring_any():
                timed = _time_ways(compiler, one)
            # The model may never ask for the keys that only the region gave up.
            for key in set(tuner.rows.not_tuned) - given_up:
                tuner.rows.forget(key)
            clock_mhz = sm_clock_mhz(tuner.device)
            tuned = tuner.rows.ways_row(
                *(one, timed.outcomes, clock_mhz),
                failure=timed.failure,
                is_disturbed=timed.is_disturbed,
            )
            asked = timed.keys.get(tuned.row.winner, set()) if tuned is not None else set()
            drop_rows(compiler, progress.keys_since(since) - asked, since)
            if tuned is not None:
                progress.save(tuned)


def drop_rows(compiler: RegionTuning, keys: Collection[str], since: int) -> None:
    """Remove the rows of *keys*, measured from number *since* on, which nobody will ask for.

    Raises:
        TableError: the table cannot be written.
    """
    compiler.progress.discard(keys, since)
    compiler.progress.reopen(keys)
    for key in keys:
        compiler.tuner.rows.forget(key)


@dataclass(frozen=True, slots=True)
class _TimedWays:
    """The outcomes of the ways of a region, and the keys that each of them asked for.

    ``failure`` is why there are no outcomes.
    """

    outcomes: Sequence[Outcome] = ()
    failure: str = ""
    is_disturbed: bool = False
    keys: Mapping[Winner, set[str]] = field(default_factory=dict)


def _time_ways(compiler: RegionTuning, waiting: WaitingQuestion) -> _TimedWays:
    tuner, question = compiler.tuner, waiting.question
    with empty_caches(), torch.no_grad():
        try:
            trial = _with_finite_result(
                ways_trial(
                    *(question, tuner.device, tuner.method, tuner.tolerance),
                    seed=tuner.seed,
                )
            )
            make_sets = partial(RegionSets, trial, tuner.device)
            ways = _Ways(compiler, question, trial)
            inputs = make_sets(trial.seed, 1).views(0)
            for winner in question.ways:
                ways.compile(winner, inputs)
            with tuner.watch.measuring() as is_disturbed:
                outcomes = run_trial(
                    trial, make_sets, ways.make_call, make_reference=ways.make_reference
                )
            return _TimedWays(outcomes, "", is_disturbed(), ways.keys)
        except WarmupError:
            raise
        except Exception as error:  # noqa: BLE001  such as little memory
            return _TimedWays(failure=first_line(error))
        finally:
            if tuner.device.type == "cuda":
                torch.cuda.empty_cache()


def _with_finite_result(trial: Trial) -> Trial:
    """Return *trial* with positive operands where others give infinities or no numbers.

    An operand may be what the model takes the root or the logarithm of.
    """
    device = torch.device(trial.device)
    assert trial.region is not None
    sets = OperandSets(trial, device, trial.seed, 1)
    outputs = region_reference(trial.region, device, sets)
    if all(bool(torch.isfinite(output).all()) for output in outputs):
        return trial
    positive = tuple(replace(spec, fill=Fill.POSITIVE) for spec in trial.operands)
    return replace(trial, operands=positive)


class _Ways:
    """The compiled ways of one region, or the errors that compiling them raised."""

    def __init__(self, compiler: RegionTuning, question: RegionQuestion, trial: Trial) -> None:
        assert trial.region is not None
        self._compiler, self._question, self._region = compiler, question, trial.region
        self._device = compiler.tuner.device
        self.keys: dict[Winner, set[str]] = {}
        self._compiled: dict[Winner, Compiled] = {}
        self._errors: dict[Winner, Exception] = {}

    def compile(self, winner: Winner, inputs: list[torch.Tensor]) -> None:
        """Compile the region as *winner* says; tune what has no row.

        An error is kept for `make_call`, where it rejects this way.

        Raises:
            WarmupError: the table cannot be written, for example.
        """
        asked = self.keys[winner] = set()

        def note(event: Event) -> None:
            if event.name in (EventName.HIT, EventName.TUNED):
                asked.add(str(event.fields["key"]))

        keys, progress = self._question.keys_in_region, self._compiler.progress
        forced = dict.fromkeys(keys, Row(winner, NO_EVIDENCE))
        rows = progress.rows_with(forced)
        lookup = replace(
            self._compiler.lookup(rows, OnMiss.TUNE, Emitter([note])),
            retunes=lambda key: key not in forced and progress.must_retune(key),
        )
        try:
            with self._compiler.attached(lookup, OnMiss.TUNE, f"region-{winner}"):
                compiled: Compiled = compile_model(module_of(self._region, self._device))
                compiled(*inputs)
        except Exception as error:
            own = warmup_error_in(error)
            if own is not None and not isinstance(own, BuildError):
                raise own from error
            self._errors[winner] = error
        else:
            self._compiled[winner] = compiled
            if keys.isdisjoint(asked):
                self._errors[winner] = BuildError("the compiled region asks for another key")

    def make_call(self, candidate: Candidate, sets: Operands) -> Callable[[int], object]:
        """Return the call of the region compiled as *candidate* says, or raise what that raised."""
        if (error := self._errors.get(candidate.winner)) is not None:
            raise error
        compiled = self._compiled[candidate.winner]
        return lambda number: compiled(*sets.views(number))

    def make_reference(self, sets: Operands) -> list[torch.Tensor]:
        """Return the outputs for the first operand set, computed in higher precision."""
        return region_reference(self._region, self._device, sets)
