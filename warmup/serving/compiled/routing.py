"""`make_buckets`: the artifacts of all buckets, and the choice of one by the sizes of a call."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, Final

from warmup.buckets.dims import Interval, ShapePolicy, intervals_of
from warmup.serving.compiled.arguments import TensorArgument
from warmup.serving.compiled.bucket import (
    BucketArtifact,
    ServedModel,
    UncompiledReason,
)
from warmup.serving.compiled.padded_bucket import PaddedArtifact
from warmup.serving.compiled.range_bucket import RangeArtifact

CallFor = Callable[[tuple[Any, ...], Mapping[str, Any]], Callable[..., Any]]
_ARTIFACTS: Final = {
    ShapePolicy.RANGE: RangeArtifact,
    ShapePolicy.PAD: PaddedArtifact,
    ShapePolicy.EXACT: BucketArtifact,
}


def make_buckets(
    served: ServedModel, sizes: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[BucketArtifact, ...], CallFor]:
    """Return the buckets of *sizes*, last dim fastest, and a function that serves a call.

    *sizes* are those of the buckets by name of the dim. Where several dims of a call have the same
    name, the first decides which bucket serves the call.
    """
    intervals = {name: _intervals(served.policy, ends) for name, ends in sizes.items()}
    buckets = tuple(
        _ARTIFACTS[served.policy](served, dict(zip(intervals, combination, strict=True)))
        for combination in itertools.product(*intervals.values())
    )
    first: dict[str, TensorArgument] = {}
    for argument in served.arguments:
        first.setdefault(argument.dim.name, argument)
    is_exact = served.policy is ShapePolicy.EXACT
    reads = [
        (name, first[name].find, first[name].dim.dim, [each.high for each in intervals[name]])
        for name in sizes
    ]

    def call_for(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        number = 0
        for name, find, dim, highs in reads:
            size = find(args, kwargs).shape[dim]
            index = bisect_left(highs, size)
            if index == len(highs) or not size:
                message = f"{name}={size}: outside of 1..{highs[-1]}"
                return served.without_artifact(UncompiledReason.BEYOND, message)
            if is_exact and highs[index] != size:
                message = f"{name}={size}: no bucket"
                return served.without_artifact(UncompiledReason.BETWEEN, message)
            number = number * len(highs) + index
        return buckets[number].call

    return buckets, call_for


def _intervals(policy: ShapePolicy, ends: tuple[int, ...]) -> tuple[Interval, ...]:
    if policy is ShapePolicy.RANGE:
        return intervals_of(ends)
    return tuple(Interval(size, size) for size in ends)
