"""From the sizes of a call to the bucket that serves it."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, Final

from warmup.buckets.dims import Interval, ShapePolicy, intervals_of
from warmup.serving.compiled.arguments import TensorArgument
from warmup.serving.compiled.bucket import BucketArtifact, Outside, RangeArtifact, Subject
from warmup.serving.compiled.padded_bucket import PaddedArtifact

CallFor = Callable[[tuple[Any, ...], Mapping[str, Any]], Callable[..., Any]]
_ARTIFACTS: Final = {
    ShapePolicy.RANGE: RangeArtifact,
    ShapePolicy.PAD: PaddedArtifact,
    ShapePolicy.EXACT: BucketArtifact,
}


def make_buckets(
    subject: Subject, ladders: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[BucketArtifact, ...], CallFor]:
    """Return the buckets of *ladders*, last dim fastest, and what finds the one for a call.

    The sizes of the first axis of each name count.
    """
    steps = {name: _steps(subject.policy, ladder) for name, ladder in ladders.items()}
    buckets = tuple(
        _ARTIFACTS[subject.policy](subject, dict(zip(steps, some, strict=True)))
        for some in itertools.product(*steps.values())
    )
    first: dict[str, TensorArgument] = {}
    for place in subject.places:
        first.setdefault(place.axis.name, place)
    is_exact = subject.policy is ShapePolicy.EXACT
    reads = [
        (name, first[name].find, first[name].axis.dim, [one.high for one in steps[name]])
        for name in ladders
    ]

    def call_for(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        number = 0
        for name, find, dim, highs in reads:
            size = find(args, kwargs).shape[dim]
            place = bisect_left(highs, size)
            if place == len(highs) or not size:
                return subject.without(Outside.BEYOND, f"{name}={size}: outside of 1..{highs[-1]}")
            if is_exact and highs[place] != size:
                return subject.without(Outside.BETWEEN, f"{name}={size}: no bucket")
            number = number * len(highs) + place
        return buckets[number].call

    return buckets, call_for


def _steps(policy: ShapePolicy, ladder: tuple[int, ...]) -> tuple[Interval, ...]:
    if policy is ShapePolicy.RANGE:
        return intervals_of(ladder)
    return tuple(Interval(size, size) for size in ladder)
