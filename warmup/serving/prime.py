"""`prime`: compile every bucket of a model from a table that `check` found ready."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from warmup.buckets.bucket import Bucket, InputSpec, parse_buckets, parse_inputs
from warmup.buckets.dims import ShapePolicy, ladders_of, widened
from warmup.core.compile_modes import MODES
from warmup.core.errors import (
    ContradictionWarning,
    ModelError,
    SettingsError,
    first_line,
    warmup_error_in,
)
from warmup.serving.check import CheckReport, PrimedBucket, State
from warmup.serving.install import Handle, install

if TYPE_CHECKING:
    import torch

    from warmup.models.loading import Inputs, LoadedModel
    from warmup.models.padding.prepare import Prepared
    from warmup.serving.compiled.model import CompiledModel


class PrimeObserver:
    """Receiver of the events of priming. Each method ignores its event unless it is overridden."""

    def model_prepared(self, prepared: Prepared) -> None:
        """Weights were padded as the table says, before the first bucket."""

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
    on_miss: str = "strict",
    mode: str = "default",
    policy: str = ShapePolicy.EXACT,
    pad_weights: bool = True,
    bundle: str | os.PathLike[str] | None = None,
    observer: PrimeObserver | None = None,
) -> CheckReport:
    """Compile and call every bucket of *model* once from a table that *checked* found ready.

    As a server does it: the table installed with *on_miss*, and with the model, so that its weights
    are padded where the table says so, unless *pad_weights* is false;
    `torch.compile(model, dynamic=False)` in the server's *mode*, or, with the *policy* ``range``,
    `warmup.compile` with the same buckets; no gradients. So inductor's caches are warm for servers
    that install this table likewise. A measurement that no row covers is refused. A bucket that
    fails does not stop the others. A *bundle* is unpacked first; one that is refused is a problem.
    Arguments are spelled as on the command line.

    Raises:
        SettingsError, ModelError: an argument or the model cannot be used.
    """
    if mode not in MODES:
        raise SettingsError(f"--mode {mode!r} is not a mode", f"use one of {', '.join(MODES)}")
    if policy not in set(ShapePolicy):
        raise SettingsError(f"policy={policy!r}", f"use one of {', '.join(ShapePolicy)}")
    if checked.state is not State.READY or checked.table is None:
        return checked
    watcher = observer or PrimeObserver()
    buckets, specs = parse_buckets(seqlens, dims), parse_inputs(inputs)
    ladders = ladders_of(buckets) if policy == ShapePolicy.RANGE else None
    buckets = buckets if ladders is None else widened(buckets)
    from warmup.inductor.machine import resolve_device
    from warmup.models.loading import load_model, parse_dtype

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work = _Priming(
            load_model(model),
            specs,
            resolve_device(device),
            parse_dtype(dtype, "--dtype") if dtype is not None else None,
            checked.table.policy.seed,
            mode,
        )
        work.place()
        with install(
            checked.table,
            on_miss=on_miss,
            uncovered="forbid",
            device=str(work.device),
            model=work.model.module if pad_weights else None,
            bundle=bundle,
        ) as handle:
            prepared = handle.prepared
            if prepared is not None and prepared.padded:
                watcher.model_prepared(prepared)
            if ladders is not None:
                work.compile_ranges(ladders, buckets[-1])
            work.run_all(buckets, handle, watcher)
            is_silent, unpacked = handle.report().is_silent, handle.bundle
    problems = work.problems
    if is_silent and not problems:
        problems.append("no bucket asked for a decision: this table is not about this model")
    if unpacked is not None and unpacked.refused is not None:
        problems.append(f"bundle {unpacked}")
    contradictions = dict.fromkeys(
        str(each.message) for each in caught if isinstance(each.message, ContradictionWarning)
    )
    remarks = (*checked.remarks, *contradictions, *work.breaks)
    primed = replace(checked, buckets=tuple(work.done), remarks=remarks, bundle=unpacked)
    return primed.with_problems(State.PARTLY, *problems)


@dataclass
class _Priming:
    """One model being primed."""

    model: LoadedModel
    specs: tuple[InputSpec, ...]
    device: torch.device
    dtype: torch.dtype | None
    seed: int
    mode: str
    done: list[PrimedBucket] = field(default_factory=list)
    ranges: CompiledModel | None = None  # what serves buckets that are intervals

    @property
    def problems(self) -> list[str]:
        """What is wrong with the buckets that were run."""
        return [f"bucket {each.bucket}: {each.problem}" for each in self.done if each.problem]

    @property
    def breaks(self) -> list[str]:
        """Where the graph of intervals broke."""
        breaks = self.ranges.report().breaks if self.ranges is not None else ()
        return [f"the graph breaks: {one}" for one in breaks]

    def place(self) -> None:
        """Put the model on its device."""
        try:
            self.model.module.to(device=self.device, dtype=self.dtype)
        except RuntimeError as error:
            raise ModelError(
                f"the model does not fit on {self.device} ({first_line(error)})"
            ) from error

    def compile_ranges(self, ladders: Mapping[str, tuple[int, ...]], largest: Bucket) -> None:
        """Let `warmup.compile` serve the buckets, which are the intervals of *ladders*."""
        from warmup.serving.compiled.compile import compile as compile_model
        from warmup.serving.compiled.find_dims import find_dims

        module = self.model.module
        dims = find_dims(module, self._inputs, largest)
        self.ranges = compile_model(
            module, dims=dims, buckets=ladders, outside="error", mode=self.mode
        )

    def run_all(self, buckets: Sequence[Bucket], handle: Handle, observer: PrimeObserver) -> None:
        """Run every bucket, and tell *observer*."""
        for bucket in buckets:
            observer.bucket_started(bucket)
            self.done.append(self.run(bucket, handle))
            observer.bucket_finished(self.done[-1])

    def run(self, bucket: Bucket, handle: Handle) -> PrimedBucket:
        """Compile and call one bucket, and return what the table's report gained by it."""
        before, started = handle.report(), time.monotonic()
        try:
            self._call(bucket)
            problem = None
        except SettingsError:
            raise
        except Exception as error:  # noqa: BLE001  the user's model may raise anything
            problem = str(warmup_error_in(error) or first_line(error))
        after = handle.report()
        misses = _gained(before.misses, after.misses)
        uncovered = _gained(before.uncovered, after.uncovered)
        if problem is None and misses:
            problem = f"no row answers {', '.join(f'`{key}`' for key in misses)}"
        cached_misses = after.cached_misses - before.cached_misses
        if problem is None and cached_misses:
            problem = f"no row had answered {cached_misses} decisions of graphs from the cache"
        if problem is None and uncovered:
            problem = f"a measurement was refused at {', '.join(uncovered)}"
        return PrimedBucket(
            bucket=bucket,
            hits=sum(after.hits.values()) - sum(before.hits.values()),
            cached=after.cached_decisions - before.cached_decisions,
            cached_misses=cached_misses,
            misses=misses,
            uncovered=uncovered,
            seconds=time.monotonic() - started,
            problem=problem,
        )

    def _call(self, bucket: Bucket) -> None:
        import torch

        from warmup.inductor.adapter import compile_model

        if self.ranges is None:
            torch.compiler.reset()  # dynamo would run the model uncompiled from the ninth size on
        made = self._inputs(bucket)
        with torch.no_grad():
            served = self.ranges or compile_model(self.model.module, self.mode)
            served(*made.args, **made.kwargs)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _inputs(self, bucket: Bucket) -> Inputs:
        import torch

        from warmup.models.loading import make_inputs

        torch.manual_seed(self.seed)
        return make_inputs(self.model, self.specs, bucket, self.device, self.dtype)


def _gained(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(name for name, count in after.items() if count > before.get(name, 0))
