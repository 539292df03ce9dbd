"""`compile_for`: a model served by `warmup.compile` for the buckets of a command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import nn

from warmup.buckets.bucket import Bucket
from warmup.buckets.dims import ShapePolicy
from warmup.serving.compiled.compile import compile as compile_model
from warmup.serving.compiled.find_dims import find_dims

if TYPE_CHECKING:
    from warmup.models.loading import Inputs
    from warmup.serving.compiled.model import CompiledModel


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
    return compile_model(
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
