"""`compile`: a model served from one artifact for each bucket of its dynamic sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from warmup.buckets.bucket import Bucket
from warmup.buckets.dims import (
    DimNames,
    ShapePolicy,
    SizeList,
    parse_bucket_sizes,
    parse_dynamic_dims,
)
from warmup.core.errors import SettingsError
from warmup.table.policy import TOLERANCE

if TYPE_CHECKING:
    from torch import nn

    from warmup.models.loading import Inputs
    from warmup.serving.compiled.model import CompiledModel
    from warmup.table import Table

_OUTSIDE: Final = ("eager", "error")


def compile(  # noqa: A001  the verb of torch, in a module of its own
    model: nn.Module,
    *,
    dims: Mapping[str, DimNames],
    buckets: SizeList | Mapping[str, SizeList],
    table: str | os.PathLike[str] | Table | None = None,
    policy: str = ShapePolicy.RANGE,
    independent: tuple[str, ...] = (),
    outside: str = "eager",
    mode: str | None = None,
    on_miss: str = "fallback",
    bundle: str | os.PathLike[str] | None = None,
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
    from warmup.serving.compiled.arguments import TensorArgument
    from warmup.serving.compiled.bucket import ServedModel
    from warmup.serving.compiled.model import CompiledModel
    from warmup.serving.compiled.routing import make_buckets
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
    if policy == ShapePolicy.PAD and dependent:
        raise SettingsError(
            f"policy='pad': independent= does not name {', '.join(dependent)}",
            "name dims along which no element of an output depends on others",
        )
    arguments = tuple(TensorArgument(model, dim) for dim in dynamic_dims)
    served = ServedModel(
        model,
        arguments,
        ShapePolicy(policy),
        mode,
        TOLERANCE,
        is_strict=outside == "error",
    )
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
    """Return *model* compiled for *buckets*, whose inputs *make_inputs* makes.

    With the *policy* ``range`` a bucket serves its range, else its own sizes alone.

    Raises:
        ModelError: the inputs do not show which dims are dynamic (`find_dims`).
    """
    from warmup.serving.compiled.find_dims import find_dims

    return compile(
        model,
        dims=find_dims(model, make_inputs, buckets[-1]),
        buckets=_sizes_of(buckets),
        policy=ShapePolicy.RANGE if policy == ShapePolicy.RANGE else ShapePolicy.EXACT,
        outside="error",
        mode=mode,
    )


def _sizes_of(buckets: Sequence[Bucket]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each dim of *buckets*, ascending."""
    pairs = sorted({pair for bucket in buckets for pair in bucket.sizes})
    return {name: tuple(size for each, size in pairs if each == name) for name, _ in pairs}
