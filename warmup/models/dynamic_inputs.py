"""`mark_inputs`: the inputs of a bucket with a range of sizes, their dims marked dynamic."""

from __future__ import annotations

from collections.abc import Callable

import torch

from warmup.buckets.bucket import Bucket
from warmup.core.errors import ModelError
from warmup.inductor.adapter import mark_range
from warmup.models.loading import Inputs


def mark_inputs(make_inputs: Callable[[Bucket], Inputs], bucket: Bucket) -> Inputs:
    """Return the inputs of *bucket*; each dim whose size has a range is marked with that range.

    A dim has the range of a size when it changes where *make_inputs* gets the lower end.

    Raises:
        ModelError: a dim grows with a size of the bucket without being equal to it.
    """
    inputs = make_inputs(bucket)
    leaves = inputs.leaves()
    for name, low in bucket.lows:
        size = bucket.size_of(name)
        smaller = make_inputs(bucket.at({name: low})).leaves()
        for number, (large, small) in enumerate(zip(leaves, smaller, strict=True)):
            if not isinstance(large, torch.Tensor):
                continue
            for dim, pair in enumerate(zip(small.shape, large.shape, strict=True)):
                if pair[0] == pair[1]:
                    continue
                if pair != (low, size):
                    raise ModelError(
                        f"input {number}, dim {dim} is {pair[1]} where {name}={size}, and "
                        f"{pair[0]} where {name}={low}",
                        "only dims of that size itself can have a range: build exact buckets",
                    )
                mark_range(large, dim, low, size)
    return inputs


def sizes_within(bucket: Bucket) -> tuple[Bucket, ...]:
    """Return the lower end and the middle of the range of *bucket*; empty without a range."""
    if not bucket.lows:
        return ()
    lows = dict(bucket.lows)
    middle = {name: (low + size) // 2 for name, size in bucket.sizes if (low := lows.get(name))}
    return tuple(dict.fromkeys([bucket.at(lows), bucket.at(middle)]))
