"""`BucketRun`: a bucket in the form that is compiled, to be served or run in other ways."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warmup.models.padding.apply import pad, restore
from warmup.models.wide_run import WideRun, release_memory, run_wide

if TYPE_CHECKING:
    from warmup.keys.weight import Padding
    from warmup.models.loading import Inputs
    from warmup.models.padding.groups import Group
    from warmup.tuning.bucket_compiler import BucketCompiler
    from warmup.tuning.served_bucket import ServedBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRun:
    """The bucket *name*: the model of ``compiler``, called with each inputs of ``calls``.

    The groups in ``padded`` are padded while it is served; ``is_shortened``: repeated layers are
    left out. Methods raise as `BucketCompiler.tune` does; the model is as before afterwards.
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

    def tune(self) -> ServedBucket:
        """Serve the bucket from the trusted rows; other questions are measured."""
        with padding(self.compiler, self.padded), self._shortened():
            return self.compiler.tune_as_is(self.calls, self.name)

    def serve_from(self, keys: Collection[str]) -> list[Any]:
        """Return the outputs of the bucket served from the rows of *keys* alone."""
        with padding(self.compiler, self.padded), self._shortened():
            return self.compiler.serve_from(keys, self.calls, self.name)

    def run_default(self) -> list[Any]:
        """Return the outputs of the unpadded model in default mode, without a table."""
        release_memory()
        with self._shortened():
            return self.compiler.run_default(self.calls, self.name)

    def run_wide(self) -> WideRun:
        """Return the outputs of the unpadded model in higher precision."""
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
    """Pad the groups in *padded* of the model of *compiler* while the context is open."""
    if not padded:
        yield
        return
    pad(compiler.model.module, padded)
    try:
        yield
    finally:
        restore(compiler.model.module)
