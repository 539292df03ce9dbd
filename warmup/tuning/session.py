"""`Session`: tunes a model bucket by bucket, and judges the outputs of each bucket."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from warmup.core.buckets import Bucket, InputSpec
from warmup.core.device import CallCost
from warmup.core.errors import BuildError, ModelError, WarmupError
from warmup.core.events import logger
from warmup.core.phases import BuildStage
from warmup.tuning.bucket_compiler import BucketCompiler, ServedBucket
from warmup.tuning.report import BucketResult, PlannedBucket, name_of

if TYPE_CHECKING:
    import torch

    from warmup.keys.weight import Padding
    from warmup.models.loading import Inputs
    from warmup.models.weight_groups import Group


@dataclass(kw_only=True)
class Session:
    """A build of the model of ``compiler``; making a session moves it to the device, as ``dtype``.

    ``tolerance`` is the error that is always accepted, by dtype of the output; None means that of
    the table's policy. With ``all_layers`` every bucket is run with all layers, even where
    the model without its repeated layers asks for the same rows.
    """

    compiler: BucketCompiler
    specs: tuple[InputSpec, ...] = ()
    dtype: torch.dtype | None = None
    tolerance: Mapping[str, float] | None = None
    all_layers: bool = False
    # Whether the shortened model asks for the same rows, by whether weights are padded.
    _can_shorten: dict[bool, bool] = field(default_factory=dict)
    _judged: set[str] = field(default_factory=set)  # keys of buckets whose outputs were right
    _first_asked: dict[str, str] = field(default_factory=dict)  # key -> the first such bucket

    def __post_init__(self) -> None:
        self.compiler.model.module.to(device=self.compiler.setup.device, dtype=self.dtype)

    def run_bucket(
        self,
        bucket: Bucket,
        index: int,
        total: int,
        padded: Mapping[Group, Padding] | None = None,
    ) -> BucketResult:
        """Tune one bucket, then serve it from the table and judge its outputs (`Judge`).

        A bucket with a range is also judged at its lower end and in the middle. The groups in
        *padded* are padded while the model is compiled; outputs are judged by those of the unpadded
        model, and the model is unpadded afterwards. Once a bucket has shown that the shortened
        model (repeated layers left out) asks for the same rows, other buckets are compiled and
        judged with the shortened model, unless ``all_layers``.

        On a GPU it is measured what a call costs the host and the device, and the table keeps it.
        Where calls are to be launched one by one and the host limits them, winners are chosen for
        the host (`prefer_host`), unless a bucket before shares their rows.

        Where an output is wrong, the row to blame is marked as not trusted, and the bucket is
        served again without that row.

        Raises:
            ModelError: the model failed in eager mode, or its sizes cannot share one artifact.
            BuildError: compiling failed.
            OutputMismatchError: the output is wrong, also without the rows that may be to blame.
                Every row stays in the table; those that may be to blame are marked.
        """
        import torch

        from warmup.inductor.caches import kept_kernels
        from warmup.tuning.host_choice import prefer_host
        from warmup.tuning.judge import BucketRun, Judge, reject_rows

        weights_padded = bool(padded)
        progress = self.compiler.progress
        progress.observer.bucket_started(bucket, index, total, weights_padded=weights_padded)
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
            judge = Judge(
                eager=expected,
                floors=self.accepted,
                run_wide=run.run_wide,
                run_default=run.run_default,
            )
            with self.compiler.tuner.clock.phase(BuildStage.JUDGING):
                judgement = judge.judge(served.outputs)
                if not judgement.is_right:
                    served, judgement = reject_rows(run, served, judge, judgement, self._judged)
                else:
                    fixed = {key for key, first in self._first_asked.items() if first != name}
                    served, judgement = prefer_host(run, served, judge, judgement, fixed)
        self._judged.update(served.keys)
        self._first_asked = dict.fromkeys(served.keys, name) | self._first_asked
        tuned = len(progress.keys_since(before).intersection(served.keys))
        cost = None
        if served.cost is not None:
            cost = replace(served.cost, left_out=left_out)
            self._keep_cost(self.call_name(bucket, weights_padded=weights_padded), cost, tuned)
        result = BucketResult(
            bucket=bucket,
            keys=served.keys,
            tuned=tuned,
            judgement=judgement,
            seconds=time.monotonic() - started,
            uncovered=served.uncovered,
            weights_padded=weights_padded,
            left_out=left_out,
            graphs=served.graphs,
            cost=cost,
            uncompiled=served.uncompiled.with_frames(self._recompiled()),
        )
        progress.observer.bucket_finished(result)
        return result

    def plan(self, bucket: Bucket, left_out: int = 0) -> PlannedBucket:
        """Return what *bucket* asks for, of the model without *left_out* layers.

        Nothing is measured or written. Raises as `run_bucket` does.
        """
        import torch

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

    def call_name(self, bucket: Bucket, *, weights_padded: bool) -> str:
        """Return the name of a call in *bucket* in the table's provenance."""
        return self.compiler.call_name(name_of(bucket, weights_padded=weights_padded))

    def _keep_cost(self, name: str, cost: CallCost, tuned: int) -> None:
        """Write *cost* to the table, unless it has a cost and none of the rows was *tuned* now."""
        progress = self.compiler.progress
        if tuned or name not in dict(progress.table.provenance.calls):
            progress.keep_cost(name, cost)

    @property
    def accepted(self) -> Mapping[str, float]:
        """The error that is always accepted, by dtype of the output."""
        policy = self.compiler.progress.table.policy
        return policy.tolerance if self.tolerance is None else self.tolerance

    def inputs(self, bucket: Bucket) -> Inputs:
        """Return the inputs of *bucket*: the same values each time."""
        import torch

        from warmup.models.loading import make_inputs

        torch.manual_seed(self.compiler.progress.table.policy.seed)
        device = self.compiler.setup.device
        return make_inputs(self.compiler.model, self.specs, bucket, device, self.dtype)

    def marked_inputs(self, bucket: Bucket) -> Inputs:
        """Return the inputs of *bucket*, with the dims of a range marked dynamic.

        Raises:
            ModelError: a dim cannot have the range.
        """
        from warmup.models.inputs import mark_inputs

        return mark_inputs(self.inputs, bucket) if bucket.lows else self.inputs(bucket)

    def calls(self, bucket: Bucket) -> tuple[Inputs, ...]:
        """Return the inputs of *bucket* and, where it has a range, those of sizes within.

        Raises:
            ModelError: a dim cannot have the range.
        """
        from warmup.models.inputs import sizes_within

        return self.marked_inputs(bucket), *map(self.inputs, sizes_within(bucket))

    def eager(self, bucket: Bucket) -> Any:
        """Return the output of the model in *bucket*, uncompiled.

        Raises:
            ModelError: the model failed.
        """
        return self._eager(self.inputs(bucket))

    def _run(
        self,
        calls: Sequence[Inputs],
        name: str,
        padded: Mapping[Group, Padding],
    ) -> tuple[ServedBucket, list[Any], int]:
        """Tune and serve a bucket; return it, eager's outputs and how many layers were left out."""
        from warmup.tuning.judge import padding

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
        """Return eager's outputs for *calls*; each run of the bucket begins as they did.

        Where the model writes buffers or inputs, they have the same values before each call.
        """
        from warmup.models.outputs import noted_tensors

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
        from warmup.models.inputs import naming_dtypes
        from warmup.models.loading import cause_of

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
