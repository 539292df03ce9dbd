"""One build under way: bucket by bucket, each finished row on disk."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmup.buckets.bucket import Bucket, InputSpec
from warmup.core.errors import BuildError, ModelError, OutputMismatchError
from warmup.core.events import Emitter, logger
from warmup.core.method import Search
from warmup.core.rows import Row, Tuned
from warmup.keys.gemm import GEMM
from warmup.keys.registry import kind_of
from warmup.table import Table
from warmup.table.lookup import Lookup, OnMiss
from warmup.table.store import add_rows, remove_rows, write
from warmup.tuning.report import BucketResult, Observer, name_of
from warmup.tuning.tune import Served, tune, tune_as_is

if TYPE_CHECKING:
    import torch

    from warmup.inductor.adapter import Inductor
    from warmup.keys.weight import Padding
    from warmup.models.loading import Inputs, LoadedModel
    from warmup.models.padding.groups import Group
    from warmup.tuning.tuner import Tuner


@dataclass
class Build:
    """One build under way."""

    inductor: Inductor
    model: LoadedModel
    specs: tuple[InputSpec, ...]
    device: torch.device
    dtype: torch.dtype | None
    path: Path
    table: Table
    force: bool
    replaces: bool
    observer: Observer
    tuner: Tuner
    tuned: list[Tuned] = field(default_factory=list)
    search: Search = Search.DEFAULT
    chosen: frozenset[str] | None = None  # who may be searched further; None for all
    until: float = math.inf  # by the clock of `time.monotonic`
    padded: Mapping[Group, Padding] = field(default_factory=dict)  # where `run_bucket` pads weights
    all_layers: bool = False  # in every bucket, also where fewer stand for all
    _done: set[str] = field(default_factory=set)
    _replaced: dict[str, Row] = field(default_factory=dict)
    _fewer_do: dict[bool, bool] = field(default_factory=dict)  # stand for all, by weights_padded

    def __post_init__(self) -> None:
        self.model.module.to(device=self.device, dtype=self.dtype)

    def run_bucket(
        self, bucket: Bucket, index: int, total: int, *, weights_padded: bool = False
    ) -> BucketResult:
        """Tune one bucket, then serve it from the table and compare with eager.

        One that serves smaller sizes too is compared at its lower end and in the middle as well.
        With *weights_padded* the model is compiled with the groups in ``padded`` padded. Eager is
        the model as it is, and so is the model afterwards. Once a bucket has shown that the model
        without what repeats in it asks for the same rows, the others are compiled and compared
        without that, unless ``all_layers``.
        """
        import torch

        from warmup.models.dynamic_inputs import mark_inputs, sizes_within
        from warmup.models.outputs import worst_error

        self.observer.bucket_started(bucket, index, total, weights_padded=weights_padded)
        name = name_of(bucket, weights_padded=weights_padded)
        started = time.monotonic()
        before = len(self.tuned)
        inputs = mark_inputs(self.inputs, bucket) if bucket.lows else self.inputs(bucket)
        sizes = (bucket, *sizes_within(bucket))
        every = [inputs, *map(self.inputs, sizes[1:])]
        with torch.no_grad():
            served, expected, left_out = self._run(
                every, sizes, name, weights_padded=weights_padded
            )
            error, limit = worst_error(expected, served.outputs, self.tolerance)
        if not error <= limit:
            fresh = {tuned.key for tuned in self.tuned[before:]}
            self.take_back(fresh, before)
            raise OutputMismatchError(
                f"bucket {name}: the compiled output is {error:.2e} away from eager "
                f"(relative L2), more than {limit:.0e}",
                f"{len(fresh)} rows tuned for it were removed; report this with the model",
            )
        result = BucketResult(
            bucket=bucket,
            keys=served.keys,
            tuned=len(self.tuned) - before,
            error=error,
            seconds=time.monotonic() - started,
            uncovered=served.uncovered,
            weights_padded=weights_padded,
            left_out=left_out,
        )
        self.observer.bucket_finished(result)
        return result

    @property
    def tolerance(self) -> Mapping[str, float]:
        """The largest error against eager that is accepted, by dtype of the output."""
        return self.table.policy.tolerance

    def inputs(self, bucket: Bucket) -> Inputs:
        """Return the inputs of *bucket*, the same each time."""
        import torch

        from warmup.models.loading import make_inputs

        torch.manual_seed(self.table.policy.seed)
        return make_inputs(self.model, self.specs, bucket, self.device, self.dtype)

    def eager(self, bucket: Bucket) -> Any:
        """Return what the model gives in *bucket* uncompiled.

        Raises:
            ModelError: it failed.
        """
        return self._eager(self.inputs(bucket), bucket)

    def lookup(self, rows: Mapping[str, Row], on_miss: OnMiss, emitter: Emitter) -> Lookup:
        """Return what answers inductor while a bucket is compiled."""
        return self.make_lookup(
            rows,
            on_miss,
            emitter,
            tuner=self.tuner,
            on_tuned=self.save,
            search=self.search,
            asks_again=self.asks_again,
        )

    @property
    def make_lookup(self) -> Callable[..., Lookup]:
        """What makes the lookup of this build."""
        return Lookup

    @contextlib.contextmanager
    def attached(self, lookup: Lookup, on_miss: OnMiss) -> Iterator[None]:
        """Let *lookup* answer while the context is open."""
        tag = f"warmup-build-{on_miss}"
        attachment = self.inductor.attach(lookup, self.table.policy.options, tag, quiet=True)
        try:
            yield
        finally:
            attachment.detach()

    def asks_again(self, key: str) -> bool:
        """Whether the row of *key* is to be tuned again: forced, or searched less far than now.

        Not once that was given up: then the row that was there stands.
        """
        row = self.table.rows.get(key)
        if row is None or key in self._done or key in self.tuner.not_tuned:
            return False
        if self.chosen is None and self.force:
            return True
        is_chosen = self.chosen is None or key in self.chosen
        narrower = row.evidence.search.is_narrower_than(self.search)
        return is_chosen and narrower and self._can_search(key) and time.monotonic() < self.until

    def lacks(self, key: str) -> bool:
        """Whether *key* is to be tuned: it has no row, or one that is to be replaced."""
        return key not in self.table.rows or self.asks_again(key)

    def save(self, tuned: Tuned) -> None:
        """Put a finished problem on disk."""
        table = self.table
        rows: Mapping[str, Row] = {tuned.key: tuned.row}
        if (before := table.rows.get(tuned.key)) is not None:
            self._replaced[tuned.key] = before
        self._done.add(tuned.key)
        if self.replaces:  # by --force: another device's table goes when its successor has a row
            self.table, self.replaces = replace(table, rows=rows), False
            write(self.path, self.table)
        else:
            self.table = add_rows(
                self.path, table.provenance, table.policy, rows, redo=before is not None
            )
        self.tuned.append(tuned)
        self.observer.problem_finished(tuned)

    def take_back(self, fresh: set[str], since: int) -> None:
        """Undo the rows *fresh*, tuned from number *since* on; those they replaced stand again."""
        self.tuned[since:] = [one for one in self.tuned[since:] if one.key not in fresh]
        before = {key: row for key, row in self._replaced.items() if key in fresh}
        if fresh:
            self.table = remove_rows(self.path, fresh)
        if before:
            origin = self.table
            self.table = add_rows(self.path, origin.provenance, origin.policy, before)

    def shortened(self) -> AbstractContextManager[int]:
        """Leave out the model's layers that repeat while the context is open; its value: how many.

        On a CPU no kernel between products has a row.
        """
        from warmup.models.repeated_layers import shortened

        return shortened(self.model.module, has_kernels=self.device.type != "cpu")

    def reopen(self, keys: Collection[str]) -> None:
        """Let *keys* be tuned once more, though they were tuned now."""
        self._done.difference_update(keys)

    def _run(
        self, every: Sequence[Inputs], sizes: Sequence[Bucket], name: str, *, weights_padded: bool
    ) -> tuple[Served, list[Any], int]:
        """Tune and serve one bucket; return what eager gives too, and how many layers were out."""
        since = len(self.tuned)
        if self._fewer_do.get(weights_padded, False) and not self.all_layers:
            try:
                with self.shortened() as left_out:
                    expected = list(map(self._eager, every, sizes))
                with self._padding(weights_padded), self.shortened():
                    return tune_as_is(self, every, name), expected, left_out
            except (BuildError, ModelError) as error:
                logger.info("bucket %s: not run with fewer layers: %s", name, error)
        expected = list(map(self._eager, every, sizes))
        with self._padding(weights_padded):
            served = tune(self, every, name, since)
        self._fewer_do[weights_padded] = served.stands_for_all
        return served, expected, 0

    @contextlib.contextmanager
    def _padding(self, weights_padded: bool) -> Iterator[None]:  # noqa: FBT001  said by its name
        """Pad the weights of the model, where they are to be, while the context is open."""
        from warmup.models.padding.apply import pad, restore

        if not weights_padded:
            yield
            return
        pad(self.model.module, self.padded)
        try:
            yield
        finally:
            restore(self.model.module)

    def _eager(self, inputs: Inputs, bucket: Bucket) -> Any:
        try:
            return self.model.module(*inputs.args, **inputs.kwargs)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ModelError(
                f"bucket {bucket}: the model failed in eager mode ({reason})"
            ) from error

    def _can_search(self, key: str) -> bool:
        """Whether a wider search tries more for *key*."""
        return kind_of(key) is GEMM and self.device.type != "cpu"
