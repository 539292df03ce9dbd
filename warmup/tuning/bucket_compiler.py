"""`BucketCompiler`: compiles a model for a bucket until each question of inductor's has a row."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from warmup.core.call_cost import CallCost
from warmup.core.compile_modes import CompileOrder
from warmup.core.errors import BuildError, MissError, warmup_error_in
from warmup.core.events import Emitter, logger
from warmup.core.method import Launch
from warmup.core.miss_reasons import MissReason
from warmup.core.phases import BuildStage
from warmup.core.rows import Row
from warmup.core.uncompiled import Uncompiled
from warmup.table.lookup import Lookup, OnMiss
from warmup.table.policy import options_served
from warmup.tuning.served_bucket import AskedQuestions, ServedBucket

if TYPE_CHECKING:
    from warmup.models.call_state import CallState
    from warmup.models.loading import Inputs, LoadedModel
    from warmup.tuning.progress import Progress
    from warmup.tuning.setup import BuildSetup
    from warmup.tuning.tuner import Tuner


def _no_state() -> CallState:
    from warmup.models.call_state import CallState

    return CallState()


@dataclass(frozen=True, kw_only=True)
class BucketCompiler:
    """Compiles ``model``; inductor's questions are answered from ``progress`` or by ``tuner``.

    ``make_lookup`` is called with the arguments of `Lookup`, and returns the lookup that answers.
    ``measure_cost`` returns what a call costs that has run before; None where that is not measured.
    ``is_rebuilt``: the model was rebuilt from a key, and asks a single question that is measured.
    ``freezes``: weights are frozen where the policy's options say so. ``state`` puts back what the
    model's calls write, before each call whose output is returned.
    """

    setup: BuildSetup
    model: LoadedModel
    progress: Progress
    tuner: Tuner
    make_lookup: Callable[..., Lookup] = Lookup
    measure_cost: Callable[[Callable[[], object]], CallCost | None] = lambda _call: None
    is_rebuilt: bool = False
    freezes: bool = True
    state: CallState = field(default_factory=_no_state)

    def tune(self, calls: Sequence[Inputs], name: str, since: int) -> ServedBucket:
        """Measure each question without a row in the bucket *name*; serve the bucket from rows.

        The model is called with each inputs of *calls*; all calls use the artifact of the first.
        Where layers repeat, the shortened model is tuned first, and the whole model only when rows
        are still missing. Rows measured from number *since* of the build on that the whole model
        does not ask for are removed again.

        Raises:
            ModelError: the sizes in *calls* cannot share one artifact.
            BuildError: compiling or a call failed otherwise. A `WarmupError` other than a miss is
                raised as it is.
        """
        shortened = self._tune_shortened(calls[:1], name)
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

    def call_name(self, name: str) -> str:
        """Return the table's name of the model's call *name*, such as ``mlp seqlen=16``."""
        return f"{self.model.name} {name}"

    def tune_as_is(self, calls: Sequence[Inputs], name: str) -> ServedBucket:
        """Measure and serve as `tune` does, with the layers that the model has now.

        Raises as `tune` does.
        """
        before = len(self.progress.tuned)
        served = self._tune_all(calls, name)
        if len(self.progress.tuned) > before:  # without new rows, that run was served from rows
            served = self._compile(calls, name, OnMiss.STRICT)
        return served

    def ask(self, calls: Sequence[Inputs], name: str) -> ServedBucket:
        """Compile the bucket *name* with library kernels where no row answers; measure nothing.

        Raises as `tune` does.
        """
        return self._compile(calls, name, OnMiss.FALLBACK)

    def lookup(self, rows: Mapping[str, Row], on_miss: OnMiss, emitter: Emitter) -> Lookup:
        """Return a lookup over *rows* that measures misses with `OnMiss.TUNE`."""
        return self.make_lookup(
            rows,
            on_miss,
            emitter,
            tuner=self.tuner,
            on_tuned=self.progress.save,
            search=self.progress.revisit.search,
            retunes=self.progress.must_retune,
            excused=self.progress.distrusted,
            searches=self.progress.table.policy.searches,
            settles=True,
        )

    def serve_from(self, keys: Collection[str], calls: Sequence[Inputs], name: str) -> list[Any]:
        """Return the outputs of the bucket *name* served from the rows of *keys* alone.

        Other questions get the library's kernel. Nothing is measured.

        Raises as `tune` does.
        """
        rows = {key: self.progress.rows[key] for key in keys}
        lookup = self.lookup(rows, OnMiss.FALLBACK, Emitter([]))
        with self.attached(lookup, OnMiss.FALLBACK):
            return self._call_compiled(calls, name)[0]

    def run_default(self, calls: Sequence[Inputs], name: str) -> list[Any]:
        """Return the outputs of the bucket *name* compiled in default mode, without a table.

        Raises as `tune` does.
        """
        return self._call_compiled(calls, f"{name} in default mode")[0]

    @contextlib.contextmanager
    def attached(
        self,
        lookup: Lookup,
        on_miss: OnMiss,
        what: str = "",
        *,
        order: CompileOrder = CompileOrder.AS_ASKED,
    ) -> Iterator[None]:
        """Let *lookup* answer inductor while the context is open; it is compiled under *what*."""
        tag = f"warmup-build-{on_miss}{what}"
        attachment = self.setup.inductor.attach(
            lookup,
            options_served(self.progress.table.policy, freezes=self.freezes),
            tag,
            quiet=True,
            order=order,
            on_compiled=self.progress.observer.candidates_compiled,
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

    def _tune_shortened(self, calls: Sequence[Inputs], name: str) -> ServedBucket | None:
        """Tune the model without repeated layers; None when no layers repeat or that fails."""
        with self.shortened() as left_out:
            if left_out:
                try:
                    return self._tune_all(calls, name)
                except BuildError as error:  # a forward may index all of its layers
                    logger.info("not tuned with %d layers fewer: %s", left_out, error)
        return None

    def _tune_all(self, calls: Sequence[Inputs], name: str) -> ServedBucket:
        """Compile until each question has a row; remove rows that a region's row made useless.

        A row that inductor does not fuse in the model as it did in the region is measured again.

        Raises as `tune` does.
        """
        from warmup.tuning.region_ways import drop_rows, measure_regions

        since, questions = len(self.progress.tuned), self.tuner.region_questions
        questions.forget()
        served = self._compile(calls, name, OnMiss.TUNE, order=self.order)
        while questions.waiting or self._unfuse(served.differing):
            measure_regions(self)
            served = self._compile(calls, name, OnMiss.TUNE)
            drop_rows(self, self.progress.keys_since(since).difference(served.keys), since)
        return served

    @property
    def order(self) -> CompileOrder:
        """When the candidates of a graph are compiled while it is tuned."""
        if self.is_rebuilt or self.tuner.device.type == "cpu":
            return CompileOrder.AS_ASKED
        # Where the host's time may decide, the workers are idle while it is taken.
        is_for_host = self.tuner.method.launch is Launch.EAGER
        return CompileOrder.BEFORE if is_for_host else CompileOrder.BESIDE

    def _unfuse(self, keys: Collection[str]) -> bool:
        """Let *keys* be measured again without fusing; return whether any of them will be."""
        new = [key for key in keys if key not in self.tuner.apart]
        for key in new:
            logger.info("fused in its region, and not in the model; measured apart: %s", key)
        self.tuner.apart.update(new)
        self.progress.measure_again(new)
        return any(map(self.progress.must_retune, new))

    def _serve(self, calls: Sequence[Inputs], name: str) -> ServedBucket | None:
        """Serve the bucket from rows alone; None when a row is missing."""
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
        on_miss: OnMiss,
        *,
        order: CompileOrder = CompileOrder.AS_ASKED,
    ) -> ServedBucket:
        """Compile the model with empty caches and call it with each inputs of *calls*.

        Rows that this build does not trust are misses, also with `OnMiss.STRICT`.
        """
        asked = AskedQuestions()
        rows = self.progress.rows
        if on_miss is OnMiss.STRICT:  # keys that could not be tuned use the library's kernel
            given_up = self.tuner.rows.library_rows
            trusted = {key: row for key, row in rows.items() if row.untrusted is None}
            rows = {**rows, **given_up, **trusted}
        lookup = self.lookup(rows, on_miss, Emitter([asked.note]))
        started = time.monotonic()
        with self.attached(lookup, on_miss, order=order):
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
            uncompiled=Uncompiled(tuple(asked.frames), asked.matmuls_outside),
        )

    def _call_compiled(
        self, calls: Sequence[Inputs], name: str, asked: AskedQuestions | None = None
    ) -> tuple[list[Any], int]:
        """Return the outputs of the model, compiled with empty caches, for each inputs of *calls*.

        With them comes the number of its graphs. *asked* gets what the first call costs and, where
        frames are uncompiled, how many matmuls it runs outside any graph.

        Raises as `tune` does.
        """
        from warmup.inductor.build_caches import empty_caches
        from warmup.inductor.compile_watch import count_matmuls_outside
        from warmup.inductor.listing import wait_for_sent
        from warmup.tuning.model_call import call_first, call_others, error_for

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
                    wait_for_sent()  # else they compile beside the host's times, and fill caches
                if asked is not None:
                    asked.cost = self._cost_of(lambda: _call(compiled, calls[0]), name)
                    if asked.frames:
                        call = partial(_call, compiled, calls[0])
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
        """Return what *call* costs; None with a warning where it cannot be called so often."""
        try:
            return self.measure_cost(call)
        except Exception as error:  # noqa: BLE001  the bucket was served, and only this is not known
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            logger.warning("bucket %s: what a call costs was not measured: %s", name, reason)
            return None


def _call(compiled: Callable[..., Any], inputs: Inputs) -> object:
    return compiled(*inputs.args, **inputs.kwargs)
