"""`BucketCompiler`: compiles a model for a bucket until each question has a row."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from warmup.core.errors import BuildError, MissError, WarmupError, warmup_error_in
from warmup.core.events import Emitter, Event, EventName, logger
from warmup.core.rows import Row
from warmup.table.lookup import Lookup, OnMiss

if TYPE_CHECKING:
    from warmup.models.loading import Inputs, LoadedModel
    from warmup.tuning.progress import Progress
    from warmup.tuning.setup import BuildSetup
    from warmup.tuning.tuner import Tuner


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBucket:
    """Which rows one bucket asked for, and the model's outputs.

    ``keys`` are those with a row, each once, in graph order; ``outputs`` has one for each call, and
    ``uncovered`` counts, by site, what was measured without a row. ``stands_for_all``: the model
    with fewer of its equal layers asked for the same rows.
    """

    keys: tuple[str, ...]
    outputs: list[Any]
    uncovered: Mapping[str, int]
    stands_for_all: bool = False


@dataclass(frozen=True, kw_only=True)
class BucketCompiler:
    """Compiles ``model`` while ``progress`` answers inductor and ``tuner`` measures.

    ``make_lookup`` makes what answers, of the arguments of `Lookup`.
    """

    setup: BuildSetup
    model: LoadedModel
    progress: Progress
    tuner: Tuner
    make_lookup: Callable[..., Lookup] = Lookup

    def tune(self, every: Sequence[Inputs], name: str, since: int) -> ServedBucket:
        """Measure what has no row in the bucket *name*; return the model served from rows alone.

        The model is called with each of *every*; the artifact of the first call serves the others.
        Where layers repeat, the model with fewer of them is tuned first, and the whole model only
        when that left a question open. Rows of the shorter model, measured here or from number
        *since* of the build on, that the whole model does not ask for are taken back.

        Raises:
            ModelError: the sizes in *every* cannot share one artifact.
            BuildError: compiling or a call failed otherwise; an error of warmup's own but a miss is
                raised as it is.
        """
        shorter = self._tune_shortened(every[:1], name)
        fresh = self.progress.fresh(since)
        served = self._serve(every, name) if shorter is not None else None
        if served is None:
            served = self.tune_as_is(every, name)
        if unasked := fresh.difference(served.keys):
            logger.info("bucket %s: rows for fewer layers alone, removed: %d", name, len(unasked))
        self.progress.take_back(unasked, since)
        self.progress.reopen(unasked)
        stands_for_all = shorter is not None and set(shorter.keys) == set(served.keys)
        return replace(served, stands_for_all=stands_for_all)

    def tune_as_is(self, every: Sequence[Inputs], name: str) -> ServedBucket:
        """Measure what has no row, and return the model, with its layers of now, served from rows.

        Raises as `tune` does.
        """
        before = len(self.progress.tuned)
        served = self._compile(every, name, OnMiss.TUNE)
        if len(self.progress.tuned) > before:  # else that run was served from rows alone already
            served = self._compile(every, name, OnMiss.STRICT)
        return served

    def lookup(self, rows: Mapping[str, Row], on_miss: OnMiss, emitter: Emitter) -> Lookup:
        """Return what answers inductor from *rows*, and measures the rest where *on_miss* says."""
        return self.make_lookup(
            rows,
            on_miss,
            emitter,
            tuner=self.tuner,
            on_tuned=self.progress.save,
            search=self.progress.revisit.search,
            retunes=self.progress.asks_again,
        )

    @contextlib.contextmanager
    def attached(self, lookup: Lookup, on_miss: OnMiss) -> Iterator[None]:
        """Let *lookup* answer while the context is open."""
        tag = f"warmup-build-{on_miss}"
        options = self.progress.table.policy.options
        attachment = self.setup.inductor.attach(lookup, options, tag, quiet=True)
        try:
            yield
        finally:
            attachment.detach()

    def shortened(self) -> AbstractContextManager[int]:
        """Leave out repeated layers of the model while the context is open; its value: how many.

        On a CPU kernels between GEMMs have no rows, so fewer layers are enough there.
        """
        from warmup.models.repeated_layers import shortened

        return shortened(self.model.module, has_kernels=self.setup.device.type != "cpu")

    def _tune_shortened(self, every: Sequence[Inputs], name: str) -> ServedBucket | None:
        """Tune the model without repeated layers; None when it has none, or cannot do without."""
        with self.shortened() as left_out:
            if left_out:
                try:
                    return self._compile(every, name, OnMiss.TUNE)
                except BuildError as error:  # a forward may count on all of its layers
                    logger.info("not tuned with %d layers fewer: %s", left_out, error)
        return None

    def _serve(self, every: Sequence[Inputs], name: str) -> ServedBucket | None:
        """Return the model served from rows alone; None when a row is missing."""
        try:
            return self._compile(every, name, OnMiss.STRICT)
        except BuildError as error:
            missed = error.__cause__ and warmup_error_in(error.__cause__)
            if not isinstance(missed, MissError):
                raise
            logger.info("bucket %s: not all was tuned with fewer layers: %s", name, missed)
        return None

    def _compile(self, every: Sequence[Inputs], name: str, on_miss: OnMiss) -> ServedBucket:
        """Compile the model with empty caches and call it; return the rows it asked for."""
        import torch

        from warmup.inductor.adapter import compile_model, empty_caches

        asked: dict[str, None] = {}
        uncovered: Counter[str] = Counter()

        def note(event: Event) -> None:
            if event.name in (EventName.HIT, EventName.TUNED):
                asked[str(event.fields["key"])] = None
            elif event.name is EventName.UNCOVERED:
                uncovered[str(event.fields["site"])] += 1

        rows = self.progress.rows
        if on_miss is OnMiss.STRICT:  # what could not be tuned is served by the library's kernel
            rows = {**self.tuner.library_rows, **rows}
        lookup = self.lookup(rows, on_miss, Emitter([note]))
        failure: Exception | None = None
        with self.attached(lookup, on_miss), empty_caches():
            try:
                compiled = compile_model(self.model.module)
                outputs = [compiled(*every[0].args, **every[0].kwargs)]
                with torch.compiler.set_stance("fail_on_recompile"):
                    outputs += [compiled(*each.args, **each.kwargs) for each in every[1:]]
            except Exception as error:  # noqa: BLE001  raised below: over it the caches would stay
                failure = error
        if failure is not None:
            try:
                raise _reported(failure, name) from failure
            finally:
                del failure  # its frames hold the model's tensors, and this one it
        keys = tuple(key for key in asked if key in self.progress.rows)
        return ServedBucket(keys=keys, outputs=outputs, uncovered=dict(uncovered))


def _reported(error: Exception, name: str) -> WarmupError:
    """Return what to raise over an *error* of a compile: warmup's own, but for a miss."""
    from warmup.inductor.artifacts import range_error

    own = warmup_error_in(error)
    if own is not None and not isinstance(own, MissError):
        return own
    if (narrower := range_error(error, name)) is not None:
        return narrower
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return BuildError(f"bucket {name}: compiling failed ({reason})")
