"""`compile`: one artifact for each bucket of a model's dynamic sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

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
) -> CompiledModel:
    """Return *model*, in eval mode, to be served from one artifact for each of its *buckets*.

    *dims* names the dynamic dims of its inputs, ``{"hidden_states": {1: "seqlen"}}``; keys and
    positions inside of an argument are appended by dots. *buckets* are the sizes of each such dim,
    ascending, spelled as for ``--seqlens``; of several dims every combination is one. *policy* says
    how sizes in between are served:

    - ``range``: an artifact serves all sizes above the bucket before it. It is compiled for its
      upper end. Size 1 has an artifact of its own.
    - ``pad``: inputs are padded with zeros to the bucket, and outputs are cut. For dims that are
      named in *independent*: no element of an output depends on others along them. That is held
      against the uncompiled model at the first padded call of each bucket; where it is not so, the
      bucket is served uncompiled.
    - ``exact``: not at all.

    Calls outside of all buckets are served uncompiled and counted, or refused where *outside* is
    ``error``. With a *table* it is installed with *on_miss* and *bundle*, and weights are padded as
    it says; see `warmup.install`. Nothing is compiled before the first call, or
    `CompiledModel.warm`. Calls may come from several threads.

    Raises:
        SettingsError: an argument cannot be used, or the model is in training mode.
        TableError, AdapterError: as `warmup.install`.
    """
    from warmup.serving.compiled.arguments import TensorArgument
    from warmup.serving.compiled.bucket import Subject
    from warmup.serving.compiled.model import CompiledModel
    from warmup.serving.compiled.routing import make_buckets
    from warmup.serving.install import install

    if policy not in set(ShapePolicy):
        raise SettingsError(f"policy={policy!r}", f"use one of {', '.join(ShapePolicy)}")
    if outside not in _OUTSIDE:
        raise SettingsError(f"outside={outside!r}", f"use one of {', '.join(_OUTSIDE)}")
    if model.training:
        raise SettingsError("the model is in training mode", "call model.eval(): this is to serve")
    axes = parse_dynamic_dims(dims)
    ladders = parse_bucket_sizes(axes, buckets)
    dependent = [name for name in ladders if name not in independent]
    if policy == ShapePolicy.PAD and dependent:
        raise SettingsError(
            f"policy='pad', and nothing says that {', '.join(dependent)} may be padded",
            "name dims along which outputs do not depend on each other in independent=",
        )
    places = tuple(TensorArgument(model, axis) for axis in axes)
    subject = Subject(
        model, places, ShapePolicy(policy), mode, TOLERANCE, is_strict=outside == "error"
    )
    made, call_for = make_buckets(subject, ladders)
    handle = None
    if table is not None:
        handle = install(table, on_miss=on_miss, model=model, bundle=bundle)
    return CompiledModel(subject, made, call_for, handle)
