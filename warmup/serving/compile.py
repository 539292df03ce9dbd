"""`compile`: a model served from one artifact for each bucket of its dynamic sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from warmup.core.buckets import (
    Bucket,
    DimNames,
    DynamicDim,
    ShapePolicy,
    SizeList,
    parse_bucket_sizes,
    parse_dynamic_dims,
)
from warmup.core.errors import SettingsError
from warmup.core.text import counted
from warmup.table.schema import TOLERANCE, Table

if TYPE_CHECKING:
    import torch
    from torch import nn

    from warmup.models.loading import Inputs
    from warmup.serving.bundle import BundleName
    from warmup.serving.compiled_buckets import BucketArtifact, CallFor, ServedModel
    from warmup.serving.handle import Handle
    from warmup.serving.install import MissAction

    Buckets = tuple[BucketArtifact, ...]


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
    _buckets: Buckets
    _call_for: CallFor

    def __init__(
        self, served: ServedModel, buckets: Buckets, call_for: CallFor, handle: Handle | None
    ) -> None:
        own = {"handle": handle, "_served": served, "_buckets": buckets, "_call_for": call_for}
        vars(self).update(own)

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
        each is called once. Calls from other threads are served meanwhile. An error of a call or of
        a compiler has a note that names the bucket, which is compiled at its next call.
        """
        from warmup.serving.compiled_buckets import resized, warm_together
        from warmup.serving.handle import installed

        def call(bucket: BucketArtifact) -> Any:
            def resize(tensor: torch.Tensor, dim: DynamicDim) -> torch.Tensor:
                return resized(tensor, dim.dim, bucket.sizes[dim.name])

            args_of_bucket, kwargs_of_bucket = self._served.replace(args, kwargs, resize)
            return bucket.call(*args_of_bucket, **kwargs_of_bucket)

        warm_together({bucket: partial(call, bucket) for bucket in self._buckets})
        if (handle := self.handle or installed()) is not None:
            handle.settle()

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


_OUTSIDE: Final = ("eager", "error")


def compile(  # noqa: A001  the verb of torch, in a module of its own
    model: nn.Module,
    *,
    dims: Mapping[str, DimNames],
    buckets: SizeList | Mapping[str, SizeList],
    table: str | os.PathLike[str] | Table | None = None,
    policy: Literal["range", "pad", "exact"] = "range",
    independent: tuple[str, ...] = (),
    outside: Literal["eager", "error"] = "eager",
    mode: str | None = None,
    on_miss: MissAction = "fallback",
    bundle: BundleName = None,
    freezing: bool | None = None,
) -> CompiledModel:
    """Return *model*, in eval mode, to be served from one artifact for each of its *buckets*.

    *dims* names the dynamic dims of its inputs: ``{"hidden_states": {1: "seqlen"}}``; keys and
    positions inside of an argument follow its name after dots. *buckets* are the sizes of each such
    dim, ascending, in the form of ``--seqlens``; with several dims, every combination is a bucket.
    *policy* says how sizes between two buckets are served:

    - ``range``: by the artifact of the larger bucket, which is compiled for its largest size and
      serves all sizes above the previous bucket. Size 1 has an artifact of its own.
    - ``pad``: inputs are padded with zeros to the larger bucket, and outputs are cut. That is right
      for dims along which no element of an output depends on others, and needs their names in
      *independent*. The first padded call of each bucket is compared with the uncompiled model; a
      bucket whose outputs differ is served uncompiled.
    - ``exact``: by no artifact.

    Calls that no artifact serves are served uncompiled and counted, or with *outside* ``error``
    refused. A *table* is installed with *on_miss*, *bundle* and *freezing*, and weights are padded
    as it says; see `warmup.install`. Nothing is compiled before the first call or
    `CompiledModel.warm`. Calls may come from several threads.

    Raises:
        SettingsError: an argument cannot be used, or the model is in training mode.
        TableError, AdapterError: as `warmup.install`.
    """
    from warmup.serving.compiled_buckets import ServedModel, TensorArgument, make_buckets
    from warmup.serving.install import install

    if policy not in set(ShapePolicy):
        raise SettingsError(f"policy={policy!r}", f"use one of {', '.join(ShapePolicy)}")
    if outside not in _OUTSIDE:
        raise SettingsError(f"outside={outside!r}", f"use one of {', '.join(_OUTSIDE)}")
    if model.training:
        raise SettingsError("the model is in training mode", "call model.eval() before serving it")
    dynamic_dims = parse_dynamic_dims(dims)
    sizes = parse_bucket_sizes(dynamic_dims, buckets)
    dependent = [name for name in sizes if name not in independent]
    if policy == "pad" and dependent:
        raise SettingsError(
            f"policy='pad': independent= does not name {', '.join(dependent)}",
            "name dims along which no element of an output depends on others",
        )
    arguments = tuple(TensorArgument(model, dim) for dim in dynamic_dims)
    shapes, is_strict = ShapePolicy(policy), outside == "error"
    served = ServedModel(model, arguments, shapes, mode, TOLERANCE, is_strict=is_strict)
    artifacts, call_for = make_buckets(served, sizes)
    handle = None
    if table is not None:
        handle = install(table, on_miss=on_miss, model=model, bundle=bundle, freezing=freezing)
    return CompiledModel(served, artifacts, call_for, handle)


def compile_for(
    model: nn.Module,
    make_inputs: Callable[[Bucket], Inputs],
    buckets: Sequence[Bucket],
    *,
    mode: str | None,
    policy: str = ShapePolicy.EXACT,
) -> CompiledModel:
    """Return *model* compiled for *buckets*, whose inputs show which dims are dynamic."""
    from warmup.serving.compiled_buckets import find_dims

    pairs = sorted({pair for bucket in buckets for pair in bucket.sizes})
    return compile(
        model,
        dims=find_dims(model, make_inputs, buckets[-1]),
        buckets={name: tuple(size for each, size in pairs if each == name) for name, _ in pairs},
        policy="range" if policy == ShapePolicy.RANGE else "exact",
        outside="error",
        mode=mode,
    )
