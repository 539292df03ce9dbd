"""`BucketCompiler`: compiles a model for a bucket until each question of inductor's has a row."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from warmup.core.device import CallCost
from warmup.core.errors import BuildError, MissError, MissReason, WarmupError, warmup_error_in
from warmup.core.events import NONE_UNCOMPILED, Emitter, Event, EventName, Tally, Uncompiled, logger
from warmup.core.phases import BuildStage
from warmup.core.rows import Effort, Flag, Row, Winner
from warmup.core.text import first_line
from warmup.core.trial import Candidate, Fill, Operands, Outcome, Trial
from warmup.inductor.adapter import compile_model
from warmup.inductor.caches import count_graphs, empty_caches, range_error
from warmup.inductor.gemm.regions import module_of
from warmup.measuring.machine import sm_clock_mhz
from warmup.measuring.reference import OperandSets
from warmup.measuring.trial import run_trial
from warmup.models.loading import Inputs
from warmup.models.outputs import CallState
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss, options_served
from warmup.tuning.trials import NO_EVIDENCE, NOT_WORTH, SPENT, BucketShares, variants_trial
from warmup.tuning.worker import Compiled, RegionSets, region_reference

if TYPE_CHECKING:
    from warmup.keys.question import RegionQuestion
    from warmup.models.model_target import LoadedModel
    from warmup.tuning.build import BuildSetup
    from warmup.tuning.progress import Progress
    from warmup.tuning.trials import WaitingQuestion
    from warmup.tuning.tuner import Tuner


# `call_first`: compiles the model of a build, and calls it.

_RECOMPILED: Final = "'fail_on_recompile'"  # torch/_dynamo/eval_frame.py


def call_first(model: nn.Module, inputs: Inputs) -> tuple[Callable[..., Any], Any, int]:
    """Compile *model* and call it; return what was compiled, the output, and how many graphs."""
    before, compiled = count_graphs(), compile_model(model)
    output = compiled(*inputs.args, **inputs.kwargs)
    return compiled, output, count_graphs() - before


def call_others(
    compiled: Callable[..., Any], calls: Sequence[Inputs], state: CallState
) -> list[Any]:
    """Return the outputs of *compiled* for *calls*, which its artifact must serve."""
    with torch.compiler.set_stance("fail_on_recompile"):
        outputs = []
        for call in calls:
            state.restore()
            outputs.append(state.detached(compiled(*call.args, **call.kwargs)))
        return outputs


def error_for(error: Exception, name: str, changed: Sequence[str] = ()) -> WarmupError:
    """Return the error to raise for an *error* of a compile: a `WarmupError` in it, but for a miss.

    *changed* are the attributes of the model that its calls change: each value has a graph of its
    own.
    """
    own = warmup_error_in(error)
    if own is not None and not isinstance(own, MissError):
        return own
    if (narrower := range_error(error, name)) is not None:
        return narrower
    if own is not None or (changed and _RECOMPILED in str(error)):
        return asks_for_others(name, own.key if own is not None else "", changed)
    return BuildError(f"bucket {name}: compiling failed ({first_line(error)})")


def asks_for_others(name: str, key: str, changed: Sequence[str]) -> BuildError:
    """Return the error of a model that asked for *key*, which has no row, after it was tuned."""
    # *changed* are as for `error_for`.
    if changed:
        return BuildError(
            f"bucket {name}: each call of the model changes its {', '.join(changed)}, and "
            "torch.compile compiles it again for each value, so that no row stays right",
            "keep what changes in a buffer or an input, not in an attribute",
        )
    return BuildError(
        f"bucket {name}: the model asks for other kernels each time that it is compiled "
        f"(such as {key})",
        "have forward compute the same in each call",
    )


# `ServedBucket`: what a compile of one bucket was answered with, and gave.


@dataclass(slots=True)
class AskedQuestions:
    """What a compile asked: how often for each key that was answered, in graph order, and the rest.

    ``missing`` are the keys that no row answered and nothing measured, ``faults`` exceptions of
    warmup's own; ``frames`` ran uncompiled, and so many matmuls outside any graph.
    """

    keys: Counter[str] = field(default_factory=Counter)
    missing: dict[str, None] = field(default_factory=dict)
    faults: dict[str, None] = field(default_factory=dict)
    uncovered: Counter[str] = field(default_factory=Counter)
    frames: dict[str, None] = field(default_factory=dict)
    matmuls_outside: int = 0
    cost: CallCost | None = None
    launches: Mapping[str, int] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        if event.name in (EventName.HIT, EventName.TUNED):
            self.keys[str(event.fields["key"])] += 1
        elif event.name is EventName.MISSED:
            is_fault = event.fields["reason"] == MissReason.INTERNAL
            noted = self.faults if is_fault else self.missing
            noted[str(event.fields["key"])] = None
        elif event.name is EventName.UNCOVERED:
            self.uncovered[str(event.fields["site"])] += 1
        elif event.name is EventName.UNCOMPILED:
            self.frames["{frame}: {reason}".format_map(event.fields)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBucket:
    """One bucket served from rows: its keys with a row, in graph order, and its outputs.

    ``uncovered`` counts measurements that no row covers, by site, ``counts`` how often the graphs
    asked for each key, ``launches`` how often a call launches each generated kernel, without its
    number. ``is_same_shortened``: the model without its repeated layers asked for the
    same keys. ``cost`` is that of the first call. ``differing`` are the keys for which inductor
    fused another way than their rows say.
    """

    keys: tuple[str, ...]
    outputs: list[Any]
    uncovered: Mapping[str, int]
    is_same_shortened: bool = False
    missing: tuple[str, ...] = ()
    graphs: int = 1
    cost: CallCost | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    differing: tuple[str, ...] = ()
    launches: Mapping[str, int] = field(default_factory=dict)
    uncompiled: Uncompiled = NONE_UNCOMPILED


@dataclass(frozen=True, kw_only=True)
class BucketCompiler:
    """Compiles ``model``; inductor's questions are answered from ``progress`` or by ``tuner``.

    ``is_rebuilt``: the model was rebuilt from a key, and asks a single question that is measured.
    ``unshown`` gets the names of buckets of which the start that the build packs will show that no
    row is missing; None where each bucket is compiled once more to show it.
    ``state`` puts back what the model's calls write, before each call whose output is returned.
    """

    setup: BuildSetup
    model: LoadedModel
    progress: Progress
    tuner: Tuner
    make_lookup: Callable[..., Lookup] = Lookup
    measure_cost: Callable[[Callable[[], object]], CallCost | None] = lambda _call: None
    is_rebuilt: bool = False
    unshown: set[str] | None = None
    freezes: bool = True
    state: CallState = field(default_factory=CallState)

    def tune(self, calls: Sequence[Inputs], name: str, since: int) -> ServedBucket:
        """Measure each question without a row in the bucket *name*; serve the bucket from rows.

        All *calls* use the artifact of the first. Where layers repeat, the shortened model is tuned
        first, and the whole model only when rows are still missing. Rows of the build from number
        *since* on that the whole model does not ask for are removed again. Sizes that cannot share
        one artifact raise a ModelError, other faults a BuildError or the `WarmupError` itself.
        """
        shortened = self._with_fewer_layers(partial(self._tune_all, calls[:1], name))
        new_keys = self.progress.keys_since(since)
        served = self._serve(calls, name) if shortened is not None else None
        if served is None or served.differing:
            served = self.tune_as_is(calls, name)
        if unused := new_keys.difference(served.keys):
            logger.info("bucket %s: rows of the shortened model alone: %d", name, len(unused))
        self.progress.discard(unused, since)
        self.progress.reopen(unused)
        for key in served.differing:
            logger.warning("bucket %s: not fused as its row says: %s", name, key)
        is_same_shortened = shortened is not None and set(shortened.keys) == set(served.keys)
        return replace(served, is_same_shortened=is_same_shortened)

    def tune_as_is(self, calls: Sequence[Inputs], name: str) -> ServedBucket:
        before = len(self.progress.tuned)
        served = self._tune_all(calls, name)
        if len(self.progress.tuned) == before:  # that run was served from rows
            return served
        if (
            self.unshown is None
            or len(calls) > 1
            or {*served.missing} - self.tuner.rows.not_tuned.keys()
        ):
            return self._compile(calls, name, OnMiss.STRICT)
        self.unshown.add(name)
        return served

    def ask(self, calls: Sequence[Inputs], name: str) -> ServedBucket:
        """Compile the bucket *name* with library kernels where no row answers; measure nothing."""
        return self._compile(calls, name)

    def survey(self, calls: Sequence[Inputs], name: str) -> None:
        """Measure each GEMM of the bucket without a row, of fewer layers where layers repeat."""
        ahead = self.compiles_ahead
        compiled = partial(
            self._compile, calls, name, measures=True, ahead=ahead, times_kernels=False
        )
        if self._with_fewer_layers(compiled) is None:
            compiled()

    def lookup(
        self,
        rows: Mapping[str, Row],
        on_miss: OnMiss,
        emitter: Emitter,
        *,
        measures: bool = False,
        times_kernels: bool = True,
    ) -> Lookup:
        return self.make_lookup(
            rows,
            on_miss,
            emitter,
            tuner=self.tuner if measures else None,
            on_tuned=self.progress.save,
            search=self.progress.revisit.search,
            retunes=self.progress.must_retune,
            excused=self.progress.distrusted,
            searches=self.progress.table.policy.searches,
            fixes_rows=self.progress.table.policy.invariant,
            settles=True,
            times_kernels=times_kernels,
        )

    def serve_from(self, keys: Collection[str], calls: Sequence[Inputs], name: str) -> list[Any]:
        """Return the outputs of the bucket served from the rows of *keys* alone."""
        rows = {key: self.progress.rows[key] for key in keys}
        lookup = self.lookup(rows, OnMiss.FALLBACK, Emitter([]))
        with self.attached(lookup):
            return self._call_compiled(calls, name)[0]

    def run_default(self, calls: Sequence[Inputs], name: str) -> list[Any]:
        """Return the outputs of the bucket *name* compiled in default mode, without a table."""
        return self._call_compiled(calls, f"{name} in default mode")[0]

    @contextlib.contextmanager
    def attached(self, lookup: Lookup, what: str = "", *, ahead: bool = False) -> Iterator[None]:
        """Let *lookup* answer inductor while the context is open; it is compiled under *what*."""
        tag = f"warmup-build-{'tune' if lookup.measures else lookup.on_miss}{what}"
        attachment = self.setup.inductor.attach(
            lookup,
            options_served(self.progress.table.policy, freezes=self.freezes),
            tag,
            quiet=True,
            ahead=ahead,
        )
        try:
            yield
        finally:
            attachment.detach()

    def shortened(self) -> AbstractContextManager[int]:
        """Leave out repeated layers of the model while the context is open; its value: how many.

        On a CPU, kernels between GEMMs have no rows, so fewer layers are enough.
        """
        from warmup.models.repeated_layers import shortened

        return shortened(self.model.module, has_kernels=self.setup.device.type != "cpu")

    def _with_fewer_layers(self, serve: Callable[[], ServedBucket]) -> ServedBucket | None:
        with self.shortened() as left_out:
            if left_out:
                try:
                    return serve()
                except BuildError as error:  # a forward may index all of its layers
                    logger.info("not tuned with %d layers fewer: %s", left_out, error)
        return None

    def _tune_all(self, calls: Sequence[Inputs], name: str) -> ServedBucket:
        """Compile until each question has a row; remove rows that a region's row made useless."""
        # On a GPU the first compile measures GEMMs alone, and says what share of the device's time
        # each row has. The regions of those that are worth it are measured then, and generated
        # kernels in the second compile, when it is known which there are.
        since, tuner = len(self.progress.tuned), self.tuner
        tuner.region_questions.forget()
        tuner.fused.clear()
        has_shares = tuner.device.type != "cpu" and not self.is_rebuilt
        self._expect_all(has_shares=has_shares)
        try:
            tuner.defers = has_shares
            served = self._compile(
                *(calls, name),
                measures=True,
                ahead=self.compiles_ahead,
                times_kernels=not has_shares,
            )
            tuner.shares = self._shares(served) if has_shares else None
            is_host_limited = served.cost is not None and served.cost.is_host_limited
            tuner.prefers_fewer_kernels = is_host_limited and not tuner.replays_graphs
            is_new = has_shares and bool(served.missing)
            while self._measure_deferred(served) or is_new:
                is_new = False
                served = self._compile(calls, name, measures=True)
                drop_rows(self, self.progress.keys_since(since).difference(served.keys), since)
        finally:
            tuner.defers, tuner.shares = False, None
        return served

    def _expect_all(self, *, has_shares: bool) -> None:
        weights = {tuple(one.shape) for one in self.model.module.parameters() if one.dim() > 1}
        count = 0 if self.progress.rows else len(weights)
        self._expect(
            {
                BuildStage.COMPILING: 1 + has_shares + (self.unshown is None),
                BuildStage.BARE_TRIALS: count,
                BuildStage.FUSED_TRIALS: count * has_shares,
                BuildStage.LAUNCH_SEARCHES: _LAUNCHES_OF_WEIGHT * count * has_shares,
            }
        )

    def _expect(self, items: Mapping[BuildStage, int]) -> None:
        if not self.is_rebuilt:  # the time of many problems is that of each
            self.tuner.estimate.expect(items)

    def _shares(self, served: ServedBucket) -> BucketShares | None:
        if self.progress.effort is Effort.FULL or served.cost is None:
            return None
        counts = {**served.counts, **self.tuner.region_questions.asked}
        return BucketShares(served.cost.device_us, counts, served.launches)

    def _measure_deferred(self, served: ServedBucket) -> bool:
        """Measure the regions that wait, most valuable first; return whether there was any."""
        # A row that inductor does not fuse in the model as it did in the region is measured again.
        tuner, progress = self.tuner, self.progress
        open_keys = {one.key for one in progress.measured if Flag.OPEN in one.row.evidence.flags}
        waiting = {key: one for key, one in tuner.fused.items() if key in open_keys}
        differing = [key for key in served.differing if key not in tuner.apart]
        for key in differing:
            logger.info("fused in its region, and not in the model; measured apart: %s", key)
        tuner.apart.update(differing)
        waiting |= {key: tuner.fused[key] for key in differing if key in tuner.fused}
        again = [key for key in differing if key not in tuner.fused]  # tuned by another bucket
        progress.measure_again(again)
        worth = {
            key: one
            for key, one in waiting.items()
            if key in differing or tuner.deserves(key, one.time_us)
        }
        progress.settle(waiting.keys() - worth.keys())
        ordered = sorted(
            worth,
            key=lambda key: (key not in differing, -worth[key].time_us * served.counts.get(key, 1)),
        )
        regions = len(tuner.region_questions.waiting)
        self._expect(
            {
                BuildStage.BARE_TRIALS: 0,
                BuildStage.FUSED_TRIALS: len(worth),
                BuildStage.REGIONS: regions,
                BuildStage.LAUNCH_SEARCHES: len(served.launches) * 3 // 2 if served.missing else 0,
                BuildStage.COMPILING: bool(worth or regions or served.missing)
                + (self.unshown is None),
            }
        )
        known = {key: row.winner for key, row in progress.rows.items() if row.untrusted is None}
        chosen = [
            replace(worth[key], question=replace(worth[key].question, known=known))
            for key in ordered
        ]
        measured, done = tuner.measure_fused_all(chosen), 0
        while done < len(ordered) and (ordered[done] in differing or not tuner.estimate.is_over):
            progress.save(next(measured)[1])
            done += 1
        for key in ordered[done:]:
            tuner.postponed(worth[key].bare)
        measure_regions(self)
        return done > 0 or regions > 0 or any(map(progress.must_retune, again))

    @property
    def compiles_ahead(self) -> bool:
        return not self.is_rebuilt and self.tuner.device.type != "cpu"

    def _serve(self, calls: Sequence[Inputs], name: str) -> ServedBucket | None:
        try:
            return self._compile(calls, name, OnMiss.STRICT)
        except BuildError as error:
            miss = error.__cause__ and warmup_error_in(error.__cause__)
            if not isinstance(miss, MissError):
                raise
            logger.info("bucket %s: a row is missing after the shortened model: %s", name, miss)
        return None

    def _compile(
        self,
        calls: Sequence[Inputs],
        name: str,
        on_miss: OnMiss = OnMiss.FALLBACK,
        *,
        measures: bool = False,
        ahead: bool = False,
        times_kernels: bool = True,
    ) -> ServedBucket:
        # Rows that this build does not trust are misses, also with `OnMiss.STRICT`.
        asked = AskedQuestions()
        rows = self.progress.rows
        if on_miss is OnMiss.STRICT:  # keys that could not be tuned use the library's kernel
            given_up = self.tuner.rows.library_rows
            trusted = {key: row for key, row in rows.items() if row.untrusted is None}
            rows = {**rows, **given_up, **trusted}
        lookup = self.lookup(
            *(rows, on_miss, Emitter([asked.note])), measures=measures, times_kernels=times_kernels
        )
        started = time.monotonic()
        with self.attached(lookup, ahead=ahead):
            outputs, graphs = self._call_compiled(calls, name, asked)
        self.progress.flush()
        self.tuner.rows.not_tuned.update(dict.fromkeys(asked.faults, MissReason.INTERNAL.advice))
        seconds = time.monotonic() - started
        logger.debug("bucket %s compiled (on a miss: %s) in %.2f s", name, on_miss, seconds)
        rows = self.progress.rows
        trusted_keys = (key for key in asked.keys if key in rows and rows[key].untrusted is None)
        return ServedBucket(
            keys=tuple(trusted_keys),
            outputs=outputs,
            uncovered=dict(asked.uncovered),
            missing=tuple(asked.missing),
            graphs=graphs,
            cost=asked.cost,
            counts=dict(asked.keys),
            differing=tuple(lookup.differing),
            launches=asked.launches,
            uncompiled=Uncompiled(tuple(asked.frames), asked.matmuls_outside),
        )

    def _call_compiled(
        self, calls: Sequence[Inputs], name: str, asked: AskedQuestions | None = None
    ) -> tuple[list[Any], int]:
        # *asked* gets what the first call costs and how many matmuls it runs outside any graph.
        from warmup.inductor.compile_watch import count_matmuls_outside
        from warmup.inductor.launch.hooks import count_launches
        from warmup.inductor.listing import wait_for_sent

        failure: Exception | None = None
        with empty_caches(), self.tuner.clock.phase(BuildStage.COMPILING):
            try:
                try:
                    self.state.restore()
                    compiled, output, graphs = call_first(self.model.module, calls[0])
                    outputs = [
                        self.state.detached(output),
                        *call_others(compiled, calls[1:], self.state),
                    ]
                finally:
                    wait_for_sent()  # else they compile beside the cost of a call, and fill caches
                if asked is not None:
                    call = partial(_call, compiled, calls[0])
                    asked.cost = self._cost_of(call, name)
                    if asked.cost is not None:
                        asked.launches = count_launches(call)
                    if asked.frames:
                        asked.matmuls_outside = count_matmuls_outside(call)
            except Exception as error:  # noqa: BLE001  raised below: empty_caches would not reset dynamo
                failure = error
            self.state.restore()
        if failure is not None:
            try:
                raise error_for(failure, name, self.state.changed_plain()) from failure
            finally:
                del failure  # its frames hold the model's tensors, and this frame holds the error
        return outputs, graphs

    def _cost_of(self, call: Callable[[], object], name: str) -> CallCost | None:
        try:
            return self.measure_cost(call)
        except Exception as error:  # noqa: BLE001  the bucket was served, and only this is not known
            said = "bucket %s: what a call costs was not measured: %s"
            logger.warning(said, name, first_line(error))
            return None


def _call(compiled: Callable[..., Any], inputs: Inputs) -> object:
    return compiled(*inputs.args, **inputs.kwargs)


_LAUNCHES_OF_WEIGHT: Final = 4  # generated kernels, searched, for each different weight


# `measure_regions`: decides about padding and split reductions by compiling what will run.


def measure_regions(compiler: BucketCompiler) -> None:
    """Measure each question that waits, and save its row."""
    # Where the region cannot be compiled or timed as in default mode, the times of inductor's own
    # calls decide, and `RowMaker.not_fused` says why. Without such calls there is no row. Of a
    # region that is not worth it, or when the budget is spent, the way of default mode alone is
    # timed.
    tuner, progress = compiler.tuner, compiler.progress
    with tuner.region_questions.measuring() as waiting:
        for each in waiting:
            one, is_over, question = each, tuner.estimate.is_over, each.question
            is_small = not tuner.deserves(question.key, one.us)
            if one.bare and (is_over or is_small):
                cheap = tuner.rows.bare_variants_row(one, NOT_WORTH if is_small else SPENT)
                if cheap is not None:
                    progress.save(cheap if is_small else tuner.postponed(cheap))
                continue
            if is_over:
                one = replace(one, question=replace(question, variants=(question.library,)))
            given_up, since = set(tuner.rows.not_tuned), len(progress.tuned)
            with tuner.rows.measuring_any(), tuner.clock.phase(BuildStage.REGIONS):
                timed = _time_variants(compiler, one)
            # The model may never ask for the keys that only the region gave up.
            for key in set(tuner.rows.not_tuned) - given_up:
                tuner.rows.forget(key)
            tuned = tuner.rows.variants_row(
                *(one, timed.outcomes), failure=timed.failure, is_disturbed=timed.is_disturbed
            )
            asked = timed.keys.get(tuned.row.winner, set()) if tuned is not None else set()
            drop_rows(compiler, progress.keys_since(since) - asked, since)
            if tuned is not None:
                progress.save(tuner.postponed(tuned) if is_over else tuned)


def drop_rows(compiler: BucketCompiler, keys: Collection[str], since: int) -> None:
    """Remove the rows of *keys*, measured from number *since* on, which nobody will ask for."""
    compiler.progress.discard(keys, since)
    compiler.progress.reopen(keys)
    for key in keys:
        compiler.tuner.rows.forget(key)


_FAR_BEHIND: Final = 1.1  # half and twice the rule's parts were within 4 % of the rule on an H200


@dataclass(frozen=True, slots=True)
class _TimedVariants:
    outcomes: Sequence[Outcome] = ()
    failure: str = ""
    is_disturbed: bool = False
    keys: Mapping[Winner, set[str]] = field(default_factory=dict)


def _time_variants(compiler: BucketCompiler, waiting: WaitingQuestion) -> _TimedVariants:
    tuner, question = compiler.tuner, waiting.question
    with empty_caches(), torch.no_grad():
        try:
            trial = _with_finite_result(
                variants_trial(
                    *(question, tuner.device, tuner.method, tuner.tolerance), seed=tuner.seed
                )
            )
            make_sets = partial(RegionSets, trial, tuner.device)
            variants = _Variants(compiler, question, trial)
            inputs = make_sets(trial.seed, 1).views(0)
            outcomes, most = list[Outcome](), len(question.variants)
            first = 2 if tuner.shares is None else 1
            for count in sorted({min(first, most), min(2, most), most}):
                ways = question.variants[:count]
                for winner in ways[len(variants.keys) :]:
                    variants.compile(winner, inputs)
                with tuner.watch.measuring() as is_disturbed:
                    outcomes = run_trial(
                        replace(trial, candidates=tuple(map(Candidate, ways))),
                        *(make_sets, variants.make_call),
                        make_reference=variants.make_reference,
                    )
                is_small = not tuner.deserves(question.key, outcomes[0].time_us)
                if is_small or is_far_behind(ways[0], outcomes):
                    break
            clock_mhz = sm_clock_mhz(tuner.device)
            outcomes = [replace(one, clock_mhz=clock_mhz) for one in outcomes]
            return _TimedVariants(outcomes, "", is_disturbed(), variants.keys)
        except WarmupError:
            raise
        except Exception as error:  # noqa: BLE001  such as little memory
            return _TimedVariants(failure=first_line(error))
        finally:
            if tuner.device.type == "cuda":
                torch.cuda.empty_cache()


def is_far_behind(rule: Winner, outcomes: Sequence[Outcome]) -> bool:
    """Whether *rule* is so slow that no variant like it is the fastest."""
    times = {one.winner: one.time_us for one in outcomes if one.time_us}
    return min(times.values(), default=math.inf) * _FAR_BEHIND < times.get(rule, 0.0)


def _with_finite_result(trial: Trial) -> Trial:
    """Return *trial* with positive operands where others give infinities, as under a root."""
    device = torch.device(trial.device)
    assert trial.region is not None
    sets = OperandSets(trial, device, trial.seed, 1)
    outputs = region_reference(trial.region, device, sets)
    if all(bool(torch.isfinite(output).all()) for output in outputs):
        return trial
    positive = tuple(replace(spec, fill=Fill.POSITIVE) for spec in trial.operands)
    return replace(trial, operands=positive)


class _Variants:
    def __init__(self, compiler: BucketCompiler, question: RegionQuestion, trial: Trial) -> None:
        assert trial.region is not None
        self._compiler, self._question, self._region = compiler, question, trial.region
        self._device = compiler.tuner.device
        self.keys: dict[Winner, set[str]] = {}
        self._compiled: dict[Winner, Compiled] = {}
        self._errors: dict[Winner, Exception] = {}

    def compile(self, winner: Winner, inputs: list[torch.Tensor]) -> None:
        """Compile the region as *winner* says; tune what has no row. An error rejects this way."""
        self.keys[winner], tally = set(), Tally()
        keys, progress = self._question.keys_in_region, self._compiler.progress
        forced = dict.fromkeys(keys, Row(winner, NO_EVIDENCE))
        rows = progress.rows_with(forced)
        lookup = replace(
            self._compiler.lookup(rows, OnMiss.FALLBACK, Emitter([tally]), measures=True),
            retunes=lambda key: key not in forced and progress.must_retune(key),
        )
        try:
            with self._compiler.attached(lookup, f"region-{winner}"):
                compiled: Compiled = compile_model(module_of(self._region, self._device))
                compiled(*inputs)
        except Exception as error:
            own = warmup_error_in(error)
            if own is not None and not isinstance(own, BuildError):
                raise own from error
            self._errors[winner] = error
        else:
            self._compiled[winner], self.keys[winner] = compiled, {*tally.hits, *tally.tuned}
            if keys.isdisjoint(self.keys[winner]):
                self._errors[winner] = BuildError("the compiled region asks for another key")

    def make_call(self, candidate: Candidate, sets: Operands) -> Callable[[int], object]:
        if (error := self._errors.get(candidate.winner)) is not None:
            raise error
        compiled = self._compiled[candidate.winner]
        return lambda number: compiled(*sets.views(number))

    def make_reference(self, sets: Operands) -> list[torch.Tensor]:
        return region_reference(self._region, self._device, sets)
