"""`ModelSource`: a build of a model and its buckets; `build_model` is the public `warmup.build`."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from warmup.core.buckets import (
    Bucket,
    InputSpec,
    ShapePolicy,
    describe_count,
    parse_buckets,
    parse_inputs,
    with_ranges,
)
from warmup.core.errors import (
    BuildError,
    BundleError,
    MissReason,
    NothingRecordedError,
    SettingsError,
    warmup_error_in,
)
from warmup.core.events import Emitter, Event, EventName, Uncompiled, selections
from warmup.core.phases import BuildStage
from warmup.core.rows import Search
from warmup.core.text import first_line
from warmup.keys.registry import kind_of
from warmup.serving.bundle import PackedBundle, pack
from warmup.serving.handle import ProcessWatch
from warmup.table.bundle import BUNDLE_SUFFIX
from warmup.table.codec import digest_of
from warmup.table.lookup import Lookup, cache_tag
from warmup.table.schema import OnMiss, Table, options_served
from warmup.table.store import read
from warmup.tuning.build import (
    BuildContext,
    BuildOptions,
    BuildRequest,
    ThisProcess,
    TunedWork,
    Work,
    build,
    open_progress,
    out_path,
)
from warmup.tuning.progress import Revisit, SearchBudget, parse_budget, spend_budget
from warmup.tuning.report import (
    BucketResult,
    BuildPlan,
    BuildReport,
    Observer,
    PlannedBucket,
    joined,
    name_of,
    united_sources,
)

if TYPE_CHECKING:
    from warmup.models.padding import Prepared
    from warmup.table.invariance import RowClasses
    from warmup.tuning.session import Session


UNSTABLE: Final = "unstable"


def build_model(
    model: str,
    buckets: str | Sequence[int] | Sequence[str],
    out: str | Path | None = None,
    *,
    options: BuildOptions | None = None,
    observer: Observer | None = None,
) -> BuildReport:
    """Tune the kernels of *model* for every one of *buckets*, and write the winners to a table.

    *model* has the form of the command line's ``--model``. *buckets* are sizes of the dim seqlen,
    as numbers or text such as ``16,64``, or texts that bind dims, such as ``batch=1,8;seqlen=560``.
    *out* is the table, by default tables/DEVICE/MODEL.DTYPE.json; an existing one is completed.
    Raises as `warmup.tuning.build.build` does.
    """
    source = ModelSource(model, *_sizes_and_dims(buckets))
    path = None if out is None else Path(out)
    request = BuildRequest(
        source=source, runner=ThisProcess(), out=path, options=options or BuildOptions()
    )
    return build(request, observer)


def _sizes_and_dims(
    buckets: str | Sequence[int] | Sequence[str],
) -> tuple[str | None, tuple[str, ...]]:
    texts = (buckets,) if isinstance(buckets, str) else tuple(map(str, buckets))
    dims = tuple(text for text in texts if "=" in text)
    return ",".join(text for text in texts if "=" not in text) or None, dims


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The model ``model``, tuned for each bucket of ``seqlens`` and ``dims``."""

    label: ClassVar[str] = "--model"

    model: str
    seqlens: str | None = None
    dims: tuple[str, ...] = ()

    def refuses(self, _request: BuildRequest) -> frozenset[str]:
        return frozenset()

    def buckets(self, options: BuildOptions) -> tuple[Bucket, ...]:
        buckets = parse_buckets(self.seqlens, self.dims)
        return with_ranges(buckets) if options.policy == ShapePolicy.RANGE.value else buckets

    def build(self, request: BuildRequest, observer: Observer) -> BuildReport:
        options = request.options
        parse_budget(options.search, options.budget)
        self.buckets(options)
        parse_inputs(options.inputs)
        if isinstance(request.runner, ThisProcess):
            return request.runner.tune(request, observer)
        return self._build_spread(request, observer)

    def open(self, context: BuildContext) -> Work:
        from warmup.models.inputs import resolve_inputs
        from warmup.models.loading import load_model, parse_cast
        from warmup.tuning.bucket_compiler import BucketCompiler
        from warmup.tuning.session import Session

        options, observer = context.options, context.observer
        is_range = options.policy == ShapePolicy.RANGE.value
        if options.invariant and is_range and context.setup.device.type == "cpu":
            raise SettingsError(
                "--invariant: on a CPU inductor asks for a size and for a range under different "
                "names, and their bits cannot be compared",
                "build fixed sizes: omit --policy range",
            )
        buckets = self.buckets(options)
        cast, loaded = parse_cast(options.dtype), load_model(self.model)
        path = out_path(context.request.out, context.setup.runtime, loaded, cast)
        resolved = resolve_inputs(loaded, parse_inputs(options.inputs), buckets, cast)
        for assumption in resolved.assumptions:
            observer.said(str(assumption))
        budget = parse_budget(options.search, options.budget)
        progress = open_progress(
            context, path, lambda table: revisit_for(table, budget, options), resolved.assumptions
        )
        context.tuner.rows.only = progress.revisit.retried
        compiler = BucketCompiler(
            setup=context.setup,
            model=loaded,
            progress=progress,
            tuner=context.tuner,
            measure_cost=context.tuner.cost_of,
            freezes=options.freezing is not False,
            unshown=None
            if options.bundle is False or context.setup.device.type == "cpu"
            else set(),
        )
        specs: tuple[InputSpec, ...] = resolved.specs
        session = Session(compiler=compiler, specs=specs, dtype=cast, all_layers=options.all_layers)
        if len(buckets) > 1:
            observer.said(describe_count(buckets))
        return _ModelWork(context, session, buckets, budget)

    def _build_spread(self, request: BuildRequest, observer: Observer) -> BuildReport:
        from warmup.tuning.problems import ProblemsSource, as_problems

        started, runner = time.monotonic(), request.runner
        options = replace(request.options, device=runner.first_device)
        here = replace(request, runner=ThisProcess(), options=options)
        # The last build reports the model.
        planned = build(replace(here, options=replace(options, dry_run=True)))
        assert planned.plan is not None
        if request.options.dry_run:
            return planned
        keys = [key for key in planned.plan.missing if kind_of(key).rebuild is not None]
        ahead = None
        if keys:
            spread = BuildRequest(
                source=ProblemsSource(as_problems(keys)),
                runner=runner,
                out=planned.path,
                options=options.of_problems(),
            )
            with contextlib.suppress(NothingRecordedError):  # the model asks for all of them
                ahead = build(spread, observer)
        final = build(replace(here, out=planned.path), observer)
        final = replace(final, seconds=time.monotonic() - started)
        return final if ahead is None else _joined(planned, ahead, final)


def _joined(planned: BuildReport, ahead: BuildReport, final: BuildReport) -> BuildReport:
    together = joined([ahead, final])
    return replace(
        final,
        timings=tuple({one.key: one for one in together.timings}.values()),
        not_fused=together.not_fused,
        rows_from=united_sources(planned.rows_from, final.rows_from),
        machine=together.machine,
        stages=together.stages,
        devices=ahead.devices,
    )


def revisit_for(table: Table, budget: SearchBudget, options: BuildOptions) -> Revisit:
    """Return which rows of *table* a build measures again: all, those named, or unstable ones."""
    retry = options.retry
    if retry is None or isinstance(retry, tuple):
        keys = frozenset(retry or ())
        first_pass = budget.search if budget.seconds is None else Search.DEFAULT
        return Revisit(all_rows=options.force, keys=keys, search=first_pass)
    if retry != UNSTABLE:
        raise SettingsError(f"--retry {retry} is unknown", f"write --retry {UNSTABLE}")
    if options.force or budget.seconds is not None:
        other = "--retry all" if options.force else "--budget"
        raise SettingsError(f"--retry {retry} and {other} contradict each other", "give one")
    unstable = {key: row for key, row in table.rows.items() if row.evidence.is_unstable}
    for key, row in unstable.items():
        if budget.search.is_narrower_than(row.evidence.search):
            raise SettingsError(
                f"--retry {retry}: {key} was searched further than --search {budget.search}",
                f"add --search {row.evidence.search}",
            )
    return Revisit(retried=frozenset(unstable), search=budget.search)


@dataclass(frozen=True, slots=True)
class _ModelWork:
    context: BuildContext
    session: Session
    buckets: Sequence[Bucket]
    budget: SearchBudget

    @property
    def known(self) -> tuple[str, ...]:
        return ()

    @property
    def _pads(self) -> bool:
        wanted, setup = self.context.options.pad_weights, self.context.setup
        can_pad = setup.device.type != "cpu" and not setup.policy.invariant
        return can_pad if wanted is None else wanted

    def plan(self) -> BuildPlan:
        planned = _plan_buckets(self.session, self.buckets)
        remark = (
            "padded weights are not planned: where padding pays, a build runs each bucket again"
        )
        return BuildPlan(
            buckets=planned,
            known=tuple(dict.fromkeys(key for one in planned for key in one.known)),
            missing=tuple(dict.fromkeys(key for one in planned for key in one.missing)),
            remarks=(remark,) if self._pads else (),
        )

    def tune(self) -> TunedWork:
        from warmup.tuning.weights import measure_weights

        session, progress, started = self.session, self.context.progress, self.context.started
        estimate, limit = self.context.tuner.estimate, self.budget.seconds
        estimate.until = math.inf if limit is None else started + limit
        estimate.packs = self.context.options.bundle is not False
        if self.budget.limits_all:  # of several buckets each gets its cheap answers first
            estimate.ends = estimate.until if len(self.buckets) == 1 else -math.inf
        classes = self.context.tuner.row_classes
        if classes is not None:
            self._survey(classes)
        results, prepared = self._run_all(None), None
        if self._pads and not progress.is_done and time.monotonic() < estimate.until:
            with self.context.tuner.clock.phase(BuildStage.WEIGHTS):
                prepared = measure_weights(session, self.buckets)
        if prepared is not None and prepared.padded:
            results += self._run_all(prepared)
        if limit is not None:

            def run_again(before: BucketResult, number: int, total: int) -> BucketResult:
                padded = prepared.padded if prepared is not None and before.weights_padded else None
                return session.run_bucket(before.bucket, number, total, padded)

            results = [*spend_budget(progress, estimate, run_again, results, self.budget)]
        if classes is not None and classes.lacking:
            key, reason = next(iter(classes.lacking.items()))
            raise BuildError(
                f"{len(classes.lacking)} decisions keep the table from being invariant, such as "
                f"{key}: {reason}",
                "build without --invariant, or leave out the bucket; other rows were written",
            )
        return TunedWork(buckets=results, prepared=prepared)

    def _survey(self, classes: RowClasses) -> None:
        progress = self.context.progress
        classes.fix(progress.rows)
        if len(self.buckets) == 1:
            return  # whose own times decide for what the table has no digest of
        classes.surveys = True
        try:
            for number, bucket in enumerate(self.buckets):
                self.session.survey(bucket, number, len(self.buckets))
        finally:
            classes.surveys = False
        classes.choose()

    def _run_all(self, prepared: Prepared | None) -> list[BucketResult]:
        padded = None if prepared is None else prepared.padded
        results: list[BucketResult] = []
        for number, bucket in enumerate(self.buckets):
            if not self.context.progress.is_done:
                results.append(self.session.run_bucket(bucket, number, len(self.buckets), padded))
        return results

    def check(self, work: TunedWork, not_tuned: Mapping[str, str]) -> None:
        results, options = work.buckets, self.context.options
        if options.retry is not None or any(result.keys for result in results):
            return
        for key, reason in not_tuned.items():
            raise NothingRecordedError(f"no row could be measured in any bucket: {key}", reason)
        frames = dict.fromkeys(frame for result in results for frame in result.uncompiled.frames)
        if frames:
            left = Uncompiled(tuple(frames), max(result.uncompiled.matmuls for result in results))
            raise NothingRecordedError(
                f"the model asked inductor for no GEMM choice in any bucket, with {left}",
                "change what torch cannot trace, or compile the parts around it by themselves",
            )
        if not any(result.graphs for result in results):
            raise NothingRecordedError(
                "torch.compile made no graph of the model in any bucket: it runs uncompiled",
                "is it disabled for torch.compile?",
            )
        sites = selections(dict.fromkeys(site for each in results for site in each.uncovered))
        if sites:
            raise NothingRecordedError.of_uncovered(sites)
        raise NothingRecordedError(
            "the model asked inductor for no GEMM choice in any bucket",
            "a CPU's linears have several candidates only where weights are frozen: omit "
            "--no-freezing"
            if options.freezing is False
            else "it has no mm-like op with several candidates under these backends on this device",
        )

    def pack(self) -> PackedBundle:
        """Compile and call each bucket as a server of the table does; write what that compiled.

        A table that pads weights is served with padded and with unpadded weights. A BuildError says
        that the server asked for a key which has no row, though each that the build met has one.
        """
        from warmup.inductor.caches import empty_caches, kept_kernels, read_caches
        from warmup.models.padding import pad_by_rows, paddings
        from warmup.models.weight_groups import restore

        context, started = self.context, time.monotonic()
        path, setup = context.progress.path, context.setup
        context.observer.packing_started()
        try:
            table, freezes = read(path), context.options.freezing is not False
            digest, mode = digest_of(table), context.options.bundle_graphs
            if mode is None and setup.device.type != "cpu":
                has_graphs = table.policy.mode == "max-autotune"
                mode = "reduce-overhead" if has_graphs else "default"
            missed: list[str] = []
            emitter = Emitter([partial(_note_miss, missed)])
            with kept_kernels(), empty_caches(), contextlib.ExitStack() as stack:
                lookup = Lookup(
                    *(table.rows, OnMiss.FALLBACK, emitter),
                    searches=table.policy.searches,
                    fixes_rows=table.policy.invariant,
                )
                attachment = setup.inductor.attach(
                    lookup,
                    options_served(table.policy, freezes=freezes),
                    cache_tag(digest),
                    observer=ProcessWatch(str(path), emitter, OnMiss.FALLBACK, is_quiet=True),
                )
                stack.callback(attachment.detach)
                self._serve(mode, missed)
                if paddings(table, ()):
                    module = self.session.compiler.model.module
                    pad_by_rows(module, table.rows)
                    self._serve(mode, missed, weights_padded=True)
                    restore(module)
                files = read_caches(setup.device, graphs=mode is not None)
            return pack(path, digest, setup.runtime, files, started)
        except (BundleError, BuildError):
            raise
        except Exception as error:
            reason = f"it was not made: {warmup_error_in(error) or first_line(error)}"
            raise BundleError(str(path.with_suffix(BUNDLE_SUFFIX)), reason) from error

    def _serve(self, mode: str | None, missed: list[str], *, weights_padded: bool = False) -> None:
        import torch

        from warmup.inductor.adapter import compile_model
        from warmup.serving.compile import compile_for
        from warmup.tuning.bucket_compiler import asks_for_others

        session, policy = self.session, self.context.options.policy
        state, module = session.compiler.state, session.compiler.model.module
        compiled: Callable[..., object] | None = None
        if policy == ShapePolicy.RANGE.value:
            compiled = compile_for(module, session.inputs, self.buckets, mode=mode, policy=policy)
        not_tuned, unshown = self.context.tuner.rows.not_tuned, session.compiler.unshown or ()
        for bucket in self.buckets:
            missed.clear()
            if compiled is None:
                torch.compiler.reset()  # past its recompile limit dynamo runs the model uncompiled
            inputs = session.inputs(bucket)
            with torch.no_grad():
                (compiled or compile_model(module, mode))(*inputs.args, **inputs.kwargs)
            state.restore()
            name, unknown = name_of(bucket, weights_padded=weights_padded), {*missed} - {*not_tuned}
            if unknown and name in unshown:
                raise asks_for_others(name, min(unknown), state.changed_plain())


def _note_miss(missed: list[str], event: Event) -> None:
    if event.name is EventName.MISSED and event.fields["reason"] != MissReason.UNTRUSTED:
        missed.append(str(event.fields["key"]))


def _plan_buckets(session: Session, buckets: Sequence[Bucket]) -> tuple[PlannedBucket, ...]:
    # Once a bucket has shown that the model without its repeated layers asks for the same keys, the
    # others are compiled without them, as a build does.
    observer = session.compiler.progress.observer
    planned: list[PlannedBucket] = []
    can_shorten = False
    for number, bucket in enumerate(buckets):
        observer.bucket_started(bucket, number, len(buckets), weights_padded=False)
        if can_shorten:
            with session.compiler.shortened() as left_out:
                planned.append(session.plan(bucket, left_out))
            continue
        whole = session.plan(bucket)
        planned.append(whole)
        if not session.all_layers and number + 1 < len(buckets):
            with session.compiler.shortened() as left_out:
                can_shorten = left_out > 0 and session.plan(bucket, left_out).keys == whole.keys
    return tuple(planned)
