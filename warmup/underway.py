"""One build under way: bucket by bucket, each finished row on disk. Floor 2."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmup.bucket import Bucket, InputSpec
from warmup.choice import Row, Tuned
from warmup.errors import ModelError, OutputMismatchError
from warmup.events import Emitter
from warmup.kinds import kind_of
from warmup.lookup import Lookup, OnMiss
from warmup.method import Search
from warmup.outcome import BucketResult, Observer, name_of
from warmup.problem import GEMM
from warmup.table import Table
from warmup.table.store import add_rows, remove_rows, write
from warmup.tuning import tune

if TYPE_CHECKING:
    import torch

    from warmup.inductor.live import Inductor
    from warmup.models import Inputs, LoadedModel
    from warmup.preparing.groups import Group
    from warmup.tuner import Tuner
    from warmup.weight import Padding


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
    _done: set[str] = field(default_factory=set)
    _replaced: dict[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model.module.to(device=self.device, dtype=self.dtype)

    def run_bucket(
        self, bucket: Bucket, index: int, total: int, *, weights_padded: bool = False
    ) -> BucketResult:
        """Tune one bucket, then serve it from the table and compare with eager.

        One that serves smaller sizes too is compared at its lower end and in the middle as well.
        With *weights_padded* the model is compiled with the groups in ``padded`` padded. Eager is
        the model as it is, and so is the model afterwards.
        """
        import torch

        from warmup.agreement import worst_error
        from warmup.dynamic import mark_inputs, sizes_within

        self.observer.bucket_started(bucket, index, total, weights_padded=weights_padded)
        name = name_of(bucket, weights_padded=weights_padded)
        started = time.monotonic()
        before = len(self.tuned)
        inputs = mark_inputs(self.inputs, bucket) if bucket.lows else self.inputs(bucket)
        every = [inputs, *map(self.inputs, within := sizes_within(bucket))]
        with torch.no_grad():
            expected = list(map(self._eager, every, (bucket, *within)))
            with self._padding() if weights_padded else contextlib.nullcontext():
                served = tune(self, every, name)
            error, limit = worst_error(expected, served.outputs, self.tolerance)
        if not error <= limit:
            fresh = {tuned.key for tuned in self.tuned[before:]}
            self.take_back(fresh)
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

        from warmup.models import make_inputs

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
        """Whether the row of *key* is to be tuned again: forced, or searched less far than now."""
        row = self.table.rows.get(key)
        if key in self._done or row is None:
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

    def take_back(self, fresh: set[str]) -> None:
        """Undo the rows *fresh*; those that they replaced stand again."""
        before = {key: row for key, row in self._replaced.items() if key in fresh}
        if fresh:
            self.table = remove_rows(self.path, fresh)
        if before:
            origin = self.table
            self.table = add_rows(self.path, origin.provenance, origin.policy, before)

    def reopen(self, keys: Collection[str]) -> None:
        """Let *keys* be tuned once more, though they were tuned now."""
        self._done.difference_update(keys)

    @contextlib.contextmanager
    def _padding(self) -> Iterator[None]:
        """Pad the weights of the model while the context is open."""
        from warmup.preparing.padded import pad, restore

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
