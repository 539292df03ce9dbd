"""`prime`: compiles and calls every bucket of a model from a table that is ready."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from warmup.core.buckets import Bucket, ShapePolicy, parse_buckets, parse_inputs, with_ranges
from warmup.core.errors import ContradictionWarning, SettingsError, warmup_error_in
from warmup.core.events import Uncompiled, selections
from warmup.core.phases import Phase, PhaseClock, PhaseSeconds, added
from warmup.core.rows import COMPILE_MODES
from warmup.core.text import first_line
from warmup.serving.bundle import BundleName
from warmup.serving.check import CheckReport, PrimedBucket, Readiness
from warmup.serving.handle import Handle
from warmup.serving.install import InstallRequest, MissAction, install_as
from warmup.table.store import FoundTable

if TYPE_CHECKING:
    from warmup.models.inputs import PlacedModel
    from warmup.models.model_target import Assumption
    from warmup.models.padding import Prepared
    from warmup.serving.compile import CompiledModel


class PrimeObserver:
    """Receiver of the events of priming. Each method ignores its event unless it is overridden."""

    def model_loaded(self, assumptions: Sequence[Assumption]) -> None:
        """The model and its inputs are known, with *assumptions* where nobody named them."""

    def model_prepared(self, prepared: Prepared) -> None:
        """Weights were padded as the table says, before the first bucket."""

    def buckets_begin(self, before: PhaseSeconds) -> None:
        """The table is installed, and *before* are the phases of the start until now."""

    def bucket_started(self, bucket: Bucket) -> None:
        """A bucket begins to compile."""

    def bucket_finished(self, primed: PrimedBucket) -> None:
        """A bucket was compiled and called, or failed."""


def prime(
    checked: CheckReport,
    model: str,
    *,
    seqlens: str | Sequence[int] | None = None,
    dims: str | Sequence[str] | None = None,
    inputs: Sequence[str] = (),
    device: str = "auto",
    dtype: str | None = None,
    on_miss: MissAction = "strict",
    mode: str = "default",
    policy: str = ShapePolicy.EXACT,
    pad_weights: bool = True,
    bundle: BundleName = None,
    freezing: bool | None = None,
    observer: PrimeObserver | None = None,
) -> CheckReport:
    """Compile and call every bucket of *model* once from the table that *checked* found ready.

    The model is compiled as a server compiles it, without gradients: the table is installed with
    *on_miss*, the weights are padded as the table says, unless *pad_weights* is false, and the
    model is compiled by `torch.compile(model, dynamic=False)` in the server's *mode*, or with the
    *policy* ``range`` by `warmup.compile` with the same buckets. *freezing* is as in `install`.
    Afterwards inductor's caches are warm for servers that install this table in the same way.

    A measurement that no row covers is refused. A bucket that fails does not stop the others. The
    *bundle* is as in `install`, and must fit where it is named. Arguments have the form of the
    command line's options. A *checked* table that is not ready is returned unchanged.

    Raises:
        SettingsError, ModelError: an argument or the model cannot be used.
    """
    for name, word, known in (("mode", mode, COMPILE_MODES), ("policy", policy, [*ShapePolicy])):
        if word not in known:
            raise SettingsError(f"{name} {word!r} is unknown", f"use one of {', '.join(known)}")
    if checked.state is not Readiness.READY or checked.table is None:
        return checked
    watcher = observer or PrimeObserver()
    buckets, specs = parse_buckets(seqlens, dims), parse_inputs(inputs)
    buckets = with_ranges(buckets) if policy == ShapePolicy.RANGE else buckets
    clock = PhaseClock()
    with clock.phase(Phase.IMPORT):
        from warmup.inductor import connect
        from warmup.inductor.machine import resolve_device
        from warmup.models.inputs import place_model

        inductor = connect()
    with warnings.catch_warnings(record=True) as caught, contextlib.ExitStack() as stack:
        warnings.simplefilter("always")
        stack.enter_context(inductor.time_phases(clock))
        with clock.phase(Phase.LOAD):
            on, seed = resolve_device(device), checked.table.policy.seed
            placed = place_model(model, specs, buckets, on, dtype, seed=seed)
            work = _Priming(placed, mode, clock)
            watcher.model_loaded(placed.resolved.assumptions)
        with clock.phase(Phase.INSTALL):
            request = InstallRequest(
                table=FoundTable(checked.table, (checked.path,)),
                model=placed.module if pad_weights else None,
                on_miss=on_miss,
                bundle=bundle,
                freezing=freezing,
                device=str(on),
                quiet=True,  # the report of each bucket says it
            )
            handle = stack.enter_context(install_as(request))
            unpacked = handle.bundle
            if policy == ShapePolicy.RANGE:
                from warmup.serving.compile import compile_for

                own = placed.module, placed.inputs, buckets
                work.compiled = compile_for(*own, mode=mode, policy=policy)
        if handle.prepared is not None and handle.prepared.padded:
            watcher.model_prepared(handle.prepared)
        before = added((checked.phases_before, clock.take()))
        watcher.buckets_begin(before)
        for bucket in buckets:
            watcher.bucket_started(bucket)
            work.done.append(work.run(bucket, handle))
            watcher.bucket_finished(work.done[-1])
        is_silent = handle.report().is_silent
    problems = [f"bucket {done.bucket}: {done.problem}" for done in work.done if done.problem]
    if is_silent and not problems:
        problems.append("no bucket asked for a decision: the table is for another model")
    said = [each.message for each in caught if isinstance(each.message, ContradictionWarning)]
    contradictions = dict.fromkeys(map(str, said))
    remarks = (*checked.remarks, *contradictions, *work.remarks())
    primed = replace(checked, phases_before=before, buckets=tuple(work.done), remarks=remarks)
    return primed.with_bundle(unpacked).with_problems(Readiness.PARTLY, *problems)


@dataclass
class _Priming:
    model: PlacedModel
    mode: str
    clock: PhaseClock
    done: list[PrimedBucket] = field(default_factory=list)
    compiled: CompiledModel | None = None  # serves buckets of a range
    uncompiled: dict[Bucket, Uncompiled] = field(default_factory=dict)

    def remarks(self) -> list[str]:
        breaks = () if self.compiled is None else self.compiled.report().breaks
        items = self.uncompiled.items()
        lines = (f"bucket {bucket}: {line}" for bucket, left in items for line in left.lines())
        uncompiled = dict.fromkeys(lines)
        return [*(f"the graph breaks: {reason}" for reason in breaks), *uncompiled]

    def run(self, bucket: Bucket, handle: Handle) -> PrimedBucket:
        before = handle.report()
        try:
            self._call(bucket, lambda: _increased(before.uncompiled, handle.report().uncompiled))
            problem = None
        except SettingsError:
            raise
        except Exception as error:  # noqa: BLE001  the user's model may raise anything
            problem = str(warmup_error_in(error) or first_line(error))
        after = handle.report()
        misses = _increased(before.misses, after.misses)
        uncovered = _increased(before.uncovered, after.uncovered)
        if problem is None and misses:
            reasons = _increased(before.miss_reasons, after.miss_reasons)
            advised = (each for each in after.advised if each.partition(":")[0] in reasons)
            problem = f"no row answers {', '.join(f'`{key}`' for key in misses)}"
            problem = "; ".join((problem, *advised))
        cached_misses = after.cached_misses - before.cached_misses
        if problem is None and cached_misses:
            problem = f"{cached_misses} decisions of graphs from the cache have no row"
        if problem is None and (measured := set(uncovered).difference(selections(uncovered))):
            problem = f"measured at {', '.join(sorted(measured))}, which no row can answer"
        if problem is None and after.foreign != before.foreign:
            problem = "a graph of another table was loaded; empty inductor's cache folder"
        return PrimedBucket(
            bucket=bucket,
            hits=sum(after.hits.values()) - sum(before.hits.values()),
            cached=after.cached_decisions - before.cached_decisions,
            cached_misses=cached_misses,
            misses=misses,
            uncovered=uncovered,
            phases=self.clock.take(),
            problem=problem,
        )

    def _call(self, bucket: Bucket, frames: Callable[[], tuple[str, ...]]) -> None:
        import torch

        from warmup.inductor.adapter import compile_model
        from warmup.inductor.compile_watch import count_matmuls_outside
        from warmup.models.inputs import naming_dtypes

        if self.compiled is None:
            torch.compiler.reset()  # past its recompile limit dynamo runs the model uncompiled
        module = self.model.module
        with self.clock.phase(Phase.LOAD):
            inputs = self.model.inputs(bucket)
        served = self.compiled or compile_model(module, self.mode)
        with self.clock.phase(Phase.FIRST_CALLS), naming_dtypes(module, inputs), torch.no_grad():
            served(*inputs.args, **inputs.kwargs)
            if left := frames():
                matmuls = count_matmuls_outside(lambda: served(*inputs.args, **inputs.kwargs))
                self.uncompiled[bucket] = Uncompiled(left, matmuls)
            if self.model.device.type == "cuda":
                torch.cuda.synchronize(self.model.device)


def _increased(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(name for name, count in after.items() if count > before.get(name, 0))
