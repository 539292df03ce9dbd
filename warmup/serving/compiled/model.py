"""A model that is served from one artifact for each bucket of its dynamic sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from warmup.buckets.dims import DynamicDim, ShapePolicy

if TYPE_CHECKING:
    import torch

    from warmup.serving.compiled.bucket import BucketArtifact, Subject
    from warmup.serving.compiled.routing import CallFor
    from warmup.serving.install import Handle


@dataclass(frozen=True, slots=True)
class CompiledReport:
    """What a compiled model did so far.

    ``artifacts`` says of each bucket how many artifacts it has: none before its first call, one
    after it, more where something else than a dynamic size changed. ``outside`` counts calls that
    no artifact served, by why. ``breaks`` says where graphs broke.
    """

    policy: ShapePolicy
    artifacts: Mapping[str, int]
    outside: Mapping[str, int]
    breaks: tuple[str, ...]

    @property
    def recompiles(self) -> int:
        """How many artifacts there are beyond one for each bucket."""
        return sum(max(count - 1, 0) for count in self.artifacts.values())

    def __str__(self) -> str:
        made = sum(1 for count in self.artifacts.values() if count)
        outside = "".join(f", {count} calls {why}" for why, count in self.outside.items())
        return (
            f"policy {self.policy}: {made} of {len(self.artifacts)} buckets compiled, "
            f"{self.recompiles} recompiles{outside}"
            + "".join(f"\ngraph break: {one}" for one in self.breaks)
        )


class CompiledModel:
    """A model that is called as before; made by `warmup.compile`.

    Attributes and methods that it does not have itself are the model's, also when they are set.
    ``handle`` is the installed table, None when this one installed none.
    """

    handle: Handle | None
    _subject: Subject
    _buckets: tuple[BucketArtifact, ...]
    _call_for: CallFor

    def __init__(
        self,
        subject: Subject,
        buckets: tuple[BucketArtifact, ...],
        call_for: CallFor,
        handle: Handle | None,
    ) -> None:
        own = self.__dict__
        own["handle"], own["_subject"] = handle, subject
        own["_buckets"], own["_call_for"] = buckets, call_for

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the artifact of the bucket that the sizes are in, which is compiled when it is new.

        Raises:
            SizeError: no bucket serves these sizes, and the model is served strictly.
            SettingsError: the call has no tensor where dims say so.
            ModelError: a dim cannot be dynamic in the interval of its bucket.
        """
        return self._call_for(args, kwargs)(*args, **kwargs)

    def warm(self, *args: Any, **kwargs: Any) -> None:
        """Compile every bucket now, with the inputs of this call cut or repeated to its sizes.

        While inductor's workers make the kernels of one bucket the next is traced; then each is
        called once. Calls from other threads are served meanwhile, and wait for what they need.

        Raises:
            Exception: as a call does, or what a compiler raised; a note names the bucket. The
                buckets before it are compiled, and it will be when it is called.
        """
        from warmup.serving.compiled.warm import warm_together

        warm_together(
            {bucket: partial(self._call, bucket, args, kwargs) for bucket in self._buckets}
        )

    def _call(
        self, bucket: BucketArtifact, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call *bucket* at its own sizes."""
        from torch import arange

        def resize(tensor: torch.Tensor, axis: DynamicDim) -> torch.Tensor:
            size = bucket.sizes[axis.name]
            places = arange(size, device=tensor.device) % tensor.shape[axis.dim]
            return tensor.index_select(axis.dim, places)

        given, named = self._subject.replace(args, kwargs, resize)
        return bucket.call(*given, **named)

    def report(self) -> CompiledReport:
        """Return what happened so far; ``handle.report()`` is about the table."""
        return CompiledReport(
            self._subject.policy,
            {str(bucket): bucket.artifacts for bucket in self._buckets},
            {why.value: count for why, count in self._subject.outside.items()},
            tuple(self._subject.breaks),
        )

    def close(self) -> None:
        """Take out the table that was installed with it, if any; what is compiled stays."""
        if self.handle is not None:
            self.handle.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python looks for while this is copied or unpickled
            raise AttributeError(name)
        return getattr(self._subject.model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._subject.model, name, value)
