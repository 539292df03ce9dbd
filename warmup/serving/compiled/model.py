"""`CompiledModel`: a model that is served from one artifact for each bucket of its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from warmup.buckets.dims import DynamicDim, ShapePolicy
from warmup.core.counted import counted

if TYPE_CHECKING:
    import torch

    from warmup.serving.compiled.bucket import BucketArtifact, ServedModel
    from warmup.serving.compiled.routing import CallFor
    from warmup.serving.handle import Handle


@dataclass(frozen=True, slots=True)
class CompiledReport:
    """The counts of a compiled model so far.

    ``artifacts`` has the number of artifacts of each bucket: 0 before its first call, 1 afterwards,
    more when something else than a dynamic size has changed. ``outside`` counts calls that no
    artifact served, by reason. ``breaks`` has the place and the reason of each graph break.
    """

    policy: ShapePolicy
    artifacts: Mapping[str, int]
    outside: Mapping[str, int]
    breaks: tuple[str, ...]

    @property
    def recompiles(self) -> int:
        """The number of artifacts beyond the first of each bucket."""
        return sum(max(count - 1, 0) for count in self.artifacts.values())

    def __str__(self) -> str:
        compiled = sum(1 for count in self.artifacts.values() if count)
        calls = ((reason, counted(count, "call")) for reason, count in self.outside.items())
        outside = "".join(f", {count} {reason}" for reason, count in calls)
        return (
            f"policy {self.policy}: {compiled} of {len(self.artifacts)} buckets compiled, "
            f"{counted(self.recompiles, 'recompile')}{outside}"
            + "".join(f"\ngraph break: {place}" for place in self.breaks)
        )


class CompiledModel:
    """A model that is called like the original one; made by `warmup.compile`.

    All attributes and methods but those below are the model's; setting one sets it on the model.
    ``handle`` is the table that `warmup.compile` installed, None without a table.
    """

    handle: Handle | None
    _served: ServedModel
    _buckets: tuple[BucketArtifact, ...]
    _call_for: CallFor

    def __init__(
        self,
        served: ServedModel,
        buckets: tuple[BucketArtifact, ...],
        call_for: CallFor,
        handle: Handle | None,
    ) -> None:
        own = self.__dict__
        own["handle"], own["_served"] = handle, served
        own["_buckets"], own["_call_for"] = buckets, call_for

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the artifact of the bucket that serves these sizes; its first call compiles.

        Raises:
            SizeError: no bucket serves these sizes, and the model is served strictly.
            SettingsError: the call has no tensor where dims say so.
            ModelError: a dim cannot be dynamic in the interval of its bucket.
        """
        return self._call_for(args, kwargs)(*args, **kwargs)

    def warm(self, *args: Any, **kwargs: Any) -> None:
        """Compile every bucket now, with the inputs of this call cut or repeated to its sizes.

        While inductor's workers compile the kernels of a bucket, the next bucket is traced; then
        each is called once. Calls from other threads are served meanwhile; a call waits for its own
        bucket.

        Raises:
            Exception: an error of a call or of a compiler; a note names the bucket. The buckets
                before are compiled, and this bucket is compiled at its next call.
        """
        from warmup.serving.compiled.warm import warm_together
        from warmup.serving.handle import installed

        warm_together(
            {bucket: partial(self._call, bucket, args, kwargs) for bucket in self._buckets}
        )
        if (handle := self.handle or installed()) is not None:
            handle.settle()

    def _call(
        self, bucket: BucketArtifact, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call *bucket* at its own sizes."""
        from warmup.serving.compiled.bucket import resized

        def resize(tensor: torch.Tensor, dim: DynamicDim) -> torch.Tensor:
            return resized(tensor, dim.dim, bucket.sizes[dim.name])

        resized_args, resized_kwargs = self._served.replace(args, kwargs, resize)
        return bucket.call(*resized_args, **resized_kwargs)

    def report(self) -> CompiledReport:
        """Return the counts so far; those of the table are in ``handle.report()``."""
        return CompiledReport(
            self._served.policy,
            {str(bucket): bucket.artifacts for bucket in self._buckets},
            {reason.value: count for reason, count in self._served.uncompiled.items()},
            tuple(self._served.breaks),
        )

    def close(self) -> None:
        """Uninstall the table that `warmup.compile` installed, if any; artifacts stay compiled."""
        if self.handle is not None:
            self.handle.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python looks for these before __init__ ran, in copies
            raise AttributeError(name)
        return getattr(self._served.model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._served.model, name, value)
