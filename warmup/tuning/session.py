"""`Session`: tunes a model bucket by bucket, and judges the outputs of each bucket.

Neither eager nor default mode is exact: in a narrow dtype their errors grow with the depth of the
model. Both are compared with a run in higher precision, and bound the error of what is judged. What
is not needed is not computed: outputs within the floor of eager's are right, and default mode is
compiled only for outputs that are further from the run in higher precision than eager's are.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from warmup.core.buckets import Bucket, InputSpec
from warmup.core.errors import BuildError, ModelError, OutputMismatchError, WarmupError
from warmup.core.events import logger
from warmup.core.phases import BuildStage
from warmup.core.rows import Row
from warmup.inductor.caches import kept_kernels
from warmup.keys.pad import WEIGHT, Padding, Structure, features_of, parse_weight
from warmup.keys.registry import kind_of
from warmup.models.inputs import mark_inputs, naming_dtypes, sizes_within
from warmup.models.loading import Inputs, cause_of, make_inputs
from warmup.models.outputs import (
    WideRun,
    noted_tensors,
    output_errors,
    output_limits,
    release_memory,
    run_wide,
    worst_tensor,
)
from warmup.models.weight_groups import Group, pad, restore
from warmup.table.schema import MOST_DEFAULT, MOST_TIMES
from warmup.tuning.bucket_compiler import BucketCompiler, ServedBucket
from warmup.tuning.report import BucketResult, CheckedOutput, PlannedBucket, name_of

MOST_ERROR: Final = 0.5  # no output is right with a larger error, whatever eager's: it is random


@dataclass(kw_only=True)
class OutputCheck:
    """Judges the outputs of variants of one model, all for the same calls.

    ``floors`` is the error that is always accepted, by dtype of the output. Without ``run_default``
    eager alone bounds the error. Each run is made once at most, when its outputs are first needed.
    """

    eager: Sequence[Any]
    floors: Mapping[str, float]
    run_wide: Callable[[], WideRun]
    run_default: Callable[[], Sequence[Any]] | None = None
    _wide: WideRun | None = None
    _default: Sequence[Any] | str | None = None

    def compare(self, outputs: Sequence[Any]) -> CheckedOutput:
        """Return how far *outputs* are from the exact result, and how far they may be."""
        floors = output_limits(self.eager, self.floors)
        distances = output_errors(self.eager, outputs)
        near = _judgement(distances, floors)
        if near.is_right:
            return near
        if self._wide is None:
            self._wide = self.run_wide()
        wide = self._wide
        if wide.outputs is None:  # eager and default mode are held against each other
            of_default, remark = self._default_errors(self.eager)
            remark = "; ".join(filter(None, (wide.name, remark)))
            return _judgement(distances, floors, default=of_default, remark=remark)
        errors = output_errors(wide.outputs, outputs)
        of_eager = output_errors(wide.outputs, self.eager)
        judged = _judgement(errors, floors, reference=wide.name, eager=of_eager)
        if judged.is_right:
            return judged
        of_default, remark = self._default_errors(wide.outputs)
        return _judgement(
            errors, floors, reference=wide.name, eager=of_eager, default=of_default, remark=remark
        )

    def _default_errors(self, reference: Sequence[Any]) -> tuple[list[float] | None, str]:
        if self.run_default is None:
            return None, ""
        if self._default is None:
            try:
                self._default = self.run_default()
            except WarmupError as error:
                self._default = f"default mode was not compared: {error}"
        if isinstance(self._default, str):
            return None, self._default
        return output_errors(reference, self._default), ""


def _judgement(
    errors: list[float],
    floors: list[float],
    *,
    eager: list[float] | None = None,
    default: list[float] | None = None,
    reference: str = "eager",
    remark: str = "",
) -> CheckedOutput:
    nothing = [0.0] * len(floors)
    limits = [
        _limit(*each) for each in zip(floors, eager or nothing, default or nothing, strict=True)
    ]
    worst = worst_tensor(errors, limits)
    if worst is None:  # no output is a tensor
        return CheckedOutput(error=0.0, limit=0.0)
    return CheckedOutput(
        error=errors[worst],
        limit=limits[worst],
        reference=reference,
        eager=None if eager is None else eager[worst],
        default=None if default is None else default[worst],
        remark=remark,
    )


def _limit(floor: float, eager: float, default: float) -> float:
    counted = default if default <= MOST_DEFAULT * max(floor, eager) else 0.0
    return max(floor, min(MOST_ERROR, MOST_TIMES * max(eager, counted)))


# `bisect_rows`: which row makes the output of a bucket wrong.


@dataclass(frozen=True, slots=True)
class BisectedRow:
    """The row to blame (None: wrong without any row), and whether it is wrong alone."""

    key: str | None
    is_alone: bool


def bisect_rows(keys: Sequence[str], is_wrong: Callable[[Sequence[str]], bool]) -> BisectedRow:
    """Return which of *keys* makes the output wrong, after at most `most_trials` trials."""
    # *is_wrong* serves the bucket from the given keys alone; with all *keys* the output is wrong.
    # Of several rows that are wrong only together, the last in the order of *keys* is to blame.
    right, wrong = 0, len(keys)  # right with the first `right` rows, wrong with `wrong`
    if not keys or is_wrong(()):
        return BisectedRow(None, is_alone=False)
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if is_wrong(keys[:middle]):
            wrong = middle
        else:
            right = middle
    key = keys[right]
    return BisectedRow(key, is_alone=right == 0 or is_wrong((key,)))


def most_trials(rows: int) -> int:
    """Return how many trials `bisect_rows` needs at most for so many rows."""
    return 2 + math.ceil(math.log2(max(1, rows)))


# `BucketRun`: a bucket in the form that is compiled, to be served or run in other ways.


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRun:
    """The bucket *name* in the form that is compiled; the model is as before after each method.

    The groups in ``padded`` are padded while it is served; ``is_shortened``: repeated layers are
    left out.
    """

    compiler: BucketCompiler
    calls: tuple[Inputs, ...]
    name: str
    padded: Mapping[Group, Padding]
    is_shortened: bool

    def serve(self) -> ServedBucket:
        """Serve the bucket from the trusted rows; other questions get the library's kernel."""
        with padding(self.compiler, self.padded), self._shortened():
            return self.compiler.ask(self.calls, self.name)

    def serve_from(self, keys: Collection[str]) -> list[Any]:
        with padding(self.compiler, self.padded), self._shortened():
            return self.compiler.serve_from(keys, self.calls, self.name)

    def run_default(self) -> list[Any]:
        release_memory()
        with self._shortened():
            return self.compiler.run_default(self.calls, self.name)

    def run_wide(self) -> WideRun:
        release_memory()
        with self._shortened():
            run = run_wide(self.compiler.model.module, self.calls, self.compiler.setup.device)
        self.compiler.state.restore()  # where nothing is converted, it runs on the model's tensors
        release_memory()  # the process that measures needs memory of the same GPU
        return run

    def _shortened(self) -> AbstractContextManager[object]:
        return self.compiler.shortened() if self.is_shortened else contextlib.nullcontext()


@contextlib.contextmanager
def padding(compiler: BucketCompiler, padded: Mapping[Group, Padding]) -> Iterator[None]:
    if not padded:
        yield
        return
    pad(compiler.model.module, padded)
    try:
        yield
    finally:
        restore(compiler.model.module)


# `padding_keys`: the rows of a table that pad given groups of weights.


def padding_keys(rows: Mapping[str, Row], structures: Collection[Structure]) -> list[str]:
    """Return the keys of those *rows* that pad one of *structures* to more features."""
    about = {
        key: structure
        for key in rows
        if kind_of(key) is WEIGHT and (structure := parse_weight(key)[0]) in structures
    }
    return [
        key
        for key, structure in about.items()
        if features_of(structure, rows[key].winner) != structure.features
    ]


# `reject_rows`: finds the rows that make a bucket's output wrong, and serves it without them.

MOST_REJECTED: Final = 3  # rows found by bisection in one bucket; then all others are doubtful
_REPORT: Final = "report this with the model"
_NAME_DRAWN: Final = (
    "eager is as far away, as where a model draws random numbers: pass what it draws as an input "
    "with --input, or build it with the drawing turned off"
)


def reject_rows(
    run: BucketRun,
    served: ServedBucket,
    check: OutputCheck,
    checked: CheckedOutput,
    judged: Collection[str],
) -> tuple[ServedBucket, CheckedOutput]:
    """Mark the rows to blame for the wrong outputs of *served*; return the bucket without them."""
    # At most `MOST_REJECTED` rows are marked, each by bisection over the rows of the bucket. If
    # that is not enough, or fails, all rows are marked but those in *judged*, with which other
    # buckets were right. A marked row keeps its evidence and is not served. An OutputMismatchError
    # says that the output is wrong also without any row (then only rows of padded weights are
    # marked), or without the marked rows.
    trials = _RowTrials(run, check)
    observer = run.compiler.progress.observer
    count = len(served.keys)
    observer.said(
        f"{run.name}: the output is wrong, {checked}; looking for the row to blame among {count}, "
        f"in at most {most_trials(count)} compiles"
    )
    for _ in range(MOST_REJECTED):
        # Of rows that are wrong together the last is found: not one that other buckets need.
        keys = sorted(served.keys, key=lambda key: key in judged, reverse=True)
        try:
            blame = bisect_rows(keys, trials.is_wrong)
        except BuildError as error:
            return _reject_all(trials, served, checked, judged, f"bisection failed ({error})")
        if blame.key is None:
            raise _no_row_to_blame(trials, checked)
        before, together = checked, "" if blame.is_alone else ", together with other rows"
        served, checked = trials.distrust([blame.key], f"{before}{together}")
        observer.said(
            f"{run.name}: 1 of {len(keys)} rows is not trusted{together}: {blame.key}: with it the "
            f"output is {before}; without it {checked.error:.2e}. Its winner is not served, the "
            "library's kernel is; `warmup build` measures the key again without that winner"
        )
        if checked.is_right:
            return served, checked
    return _reject_all(trials, served, checked, judged, f"{MOST_REJECTED} rows were not enough")


@dataclass(frozen=True, slots=True)
class _RowTrials:
    run: BucketRun
    check: OutputCheck

    def is_wrong(self, keys: Sequence[str]) -> bool:
        checked = self.check.compare(self.run.serve_from(keys))
        self.run.compiler.progress.observer.rows_tried(self.run.name, len(keys), checked)
        return not checked.is_right

    def distrust(self, keys: Collection[str], reason: str) -> tuple[ServedBucket, CheckedOutput]:
        text = f"bucket {self.run.name}: with it the output was {reason}"
        self.run.compiler.progress.distrust(keys, text)
        served = self.run.serve()
        return served, self.check.compare(served.outputs)


def _reject_all(
    trials: _RowTrials,
    served: ServedBucket,
    checked: CheckedOutput,
    judged: Collection[str],
    why: str,
) -> tuple[ServedBucket, CheckedOutput]:
    run = trials.run
    keys = [key for key in served.keys if key not in judged]
    problem = f"bucket {run.name}: the compiled output is {checked}; {why}"
    if not keys:
        raise OutputMismatchError(problem, f"with its rows other buckets are right; {_REPORT}")
    served, after = trials.distrust(keys, f"{checked}; no single row is to blame: {why}")
    told = f"its {len(keys)} rows that no other bucket was right with are not trusted"
    if not after.is_right:
        raise OutputMismatchError(problem, f"{told}, and without them it is {after}; {_REPORT}")
    run.compiler.progress.observer.said(
        f"{problem}: {told}; without them it is {after}; `warmup build` measures them again"
    )
    return served, after


def _no_row_to_blame(trials: _RowTrials, checked: CheckedOutput) -> OutputMismatchError:
    run, progress = trials.run, trials.run.compiler.progress
    problem = f"bucket {run.name}: the compiled output is {checked}, also without any row"
    weights = padding_keys(progress.rows, {group.structure for group in run.padded})
    if not weights:
        is_random = checked.eager is not None and checked.eager * MOST_TIMES > MOST_ERROR
        advice = _NAME_DRAWN if is_random else _REPORT
        return OutputMismatchError(problem, f"no row is to blame, and all stay; {advice}")
    progress.distrust(weights, f"bucket {run.name}: with padded weights the output was {checked}")
    return OutputMismatchError(
        problem,
        f"the {len(weights)} rows that pad its weights are not trusted, and all stay; build again "
        "to serve these weights unpadded",
    )


@dataclass(kw_only=True)
class Session:
    """A build of the model of ``compiler``; making a session moves it to the device, as ``dtype``.

    ``tolerance`` is the error that is always accepted, by dtype of the output; None means that of
    the table's policy. With ``all_layers`` every bucket is run with all layers.
    """

    compiler: BucketCompiler
    specs: tuple[InputSpec, ...] = ()
    dtype: torch.dtype | None = None
    tolerance: Mapping[str, float] | None = None
    all_layers: bool = False
    # Whether the shortened model asks for the same rows, by whether weights are padded.
    _can_shorten: dict[bool, bool] = field(default_factory=dict)
    _judged: set[str] = field(default_factory=set)  # keys of buckets whose outputs were right

    def __post_init__(self) -> None:
        self.compiler.model.module.to(device=self.compiler.setup.device, dtype=self.dtype)

    def run_bucket(
        self, bucket: Bucket, index: int, total: int, padded: Mapping[Group, Padding] | None = None
    ) -> BucketResult:
        """Tune one bucket, then serve it from the table and judge its outputs (`OutputCheck`).

        A bucket with a range is also judged at its lower end and in the middle. Outputs with the
        groups in *padded* padded are judged by those of the unpadded model. Once a bucket has shown
        that the shortened model asks for the same rows, other buckets are run with it, unless
        ``all_layers``. A row that makes an output wrong is marked, and the bucket is served again
        without it.

        Raises:
            ModelError: the model failed in eager mode, or its sizes cannot share one artifact.
            BuildError: compiling failed.
            OutputMismatchError: the output is wrong, also without the rows that may be to blame.
        """
        weights_padded = bool(padded)
        progress = self.compiler.progress
        progress.observer.bucket_started(bucket, index, total, weights_padded=weights_padded)
        self.compiler.tuner.estimate.bucket_started(total - index - 1)
        name = name_of(bucket, weights_padded=weights_padded)
        started = time.monotonic()
        before = len(progress.tuned)
        calls = self.calls(bucket)
        with kept_kernels(), torch.no_grad():
            served, expected, left_out = self._run(calls, name, padded or {})
            run = BucketRun(
                compiler=self.compiler,
                calls=calls,
                name=name,
                padded=padded or {},
                is_shortened=left_out > 0,
            )
            check = OutputCheck(
                eager=expected,
                floors=self.accepted,
                run_wide=run.run_wide,
                run_default=run.run_default,
            )
            with self.compiler.tuner.clock.phase(BuildStage.JUDGING):
                checked = check.compare(served.outputs)
                if not checked.is_right:
                    served, checked = reject_rows(run, served, check, checked, self._judged)
        self._judged.update(served.keys)
        tuned = len(progress.keys_since(before).intersection(served.keys))
        cost = None
        if served.cost is not None:
            cost = replace(served.cost, left_out=left_out)
            call = f"{self.compiler.model.name} {name}"
            if tuned or call not in dict(progress.table.provenance.calls):
                progress.keep_cost(call, cost)
        result = BucketResult(
            bucket=bucket,
            keys=served.keys,
            tuned=tuned,
            judgement=checked,
            seconds=time.monotonic() - started,
            uncovered=served.uncovered,
            weights_padded=weights_padded,
            left_out=left_out,
            graphs=served.graphs,
            cost=cost,
            uncompiled=served.uncompiled.with_frames(self._recompiled()),
        )
        self.compiler.tuner.estimate.bucket_finished()
        progress.observer.bucket_finished(result)
        return result

    def survey(self, bucket: Bucket, index: int, total: int) -> None:
        """Measure the GEMMs of *bucket* alone, for `RowClasses` of the tuner; no row is kept."""
        self.compiler.progress.observer.bucket_started(bucket, index, total, weights_padded=False)
        self.compiler.tuner.estimate.bucket_started(2 * total - index - 1)
        calls, name = self.calls(bucket)[:1], f"{bucket} (survey)"
        with kept_kernels(), torch.no_grad():
            self._expected(calls, name)  # notes what a call writes, which is put back before each
            self.compiler.survey(calls, name)

    def plan(self, bucket: Bucket, left_out: int = 0) -> PlannedBucket:
        """Return what *bucket* asks for, of the model without *left_out* layers."""
        started = time.monotonic()
        calls = self.calls(bucket)
        with torch.no_grad():
            asked = self.compiler.ask(calls, str(bucket))
        return PlannedBucket(
            bucket=bucket,
            known=asked.keys,
            missing=asked.missing,
            seconds=time.monotonic() - started,
            graphs=asked.graphs,
            left_out=left_out,
            uncompiled=asked.uncompiled,
        )

    def _recompiled(self) -> list[str]:
        return [
            f"calls after the first few: each changes {text}, and torch.compile makes a graph for "
            "each value, up to its limit"
            for text in self.compiler.state.changed_plain()
        ]

    @property
    def accepted(self) -> Mapping[str, float]:
        policy = self.compiler.progress.table.policy
        return policy.tolerance if self.tolerance is None else self.tolerance

    def inputs(self, bucket: Bucket) -> Inputs:
        """Return the inputs of *bucket*: the same values each time."""
        torch.manual_seed(self.compiler.progress.table.policy.seed)
        device = self.compiler.setup.device
        return make_inputs(self.compiler.model, self.specs, bucket, device, self.dtype)

    def calls(self, bucket: Bucket) -> tuple[Inputs, ...]:
        """Return the inputs of *bucket*, the dims of a range dynamic, and those of sizes within."""
        first = mark_inputs(self.inputs, bucket) if bucket.lows else self.inputs(bucket)
        return first, *map(self.inputs, sizes_within(bucket))

    def eager(self, bucket: Bucket) -> Any:
        return self._eager(self.inputs(bucket))

    def _run(
        self, calls: Sequence[Inputs], name: str, padded: Mapping[Group, Padding]
    ) -> tuple[ServedBucket, list[Any], int]:
        compiler, weights_padded = self.compiler, bool(padded)
        since = len(compiler.progress.tuned)
        if self._can_shorten.get(weights_padded, False) and not self.all_layers:
            try:
                with compiler.shortened() as left_out:
                    expected = self._expected(calls, name)
                with padding(self.compiler, padded), compiler.shortened():
                    return compiler.tune_as_is(calls, name), expected, left_out
            except (BuildError, ModelError) as error:
                logger.info("bucket %s: not run with fewer layers: %s", name, error)
        expected = self._expected(calls, name)
        with padding(self.compiler, padded):
            served = compiler.tune(calls, name, since)
        self._can_shorten[weights_padded] = served.is_same_shortened
        return served, expected, 0

    def _expected(self, calls: Sequence[Inputs], name: str) -> list[Any]:
        # Where the model writes buffers or inputs, they have the same values before each call.
        state, module = self.compiler.state, self.compiler.model.module
        noted = noted_tensors(module, [(call.args, call.kwargs) for call in calls])
        outputs = list(map(self._eager, calls))
        names = state.keep_written(noted)
        state.keep_plain(module)
        if not names:
            return outputs
        logger.info("bucket %s: a call writes %s, put back before each", name, ", ".join(names))
        outputs = []
        for call in calls:
            outputs.append(state.detached(self._eager(call)))
            state.restore()
        return outputs

    def _eager(self, inputs: Inputs) -> Any:
        module, clock = self.compiler.model.module, self.compiler.tuner.clock
        try:
            with clock.phase(BuildStage.JUDGING), naming_dtypes(module, inputs):
                return module(*inputs.args, **inputs.kwargs)
        except WarmupError:
            raise
        except Exception as error:
            raise ModelError(
                f"bucket {inputs.bucket}: the model failed in eager mode ({cause_of(error)})"
            ) from error
