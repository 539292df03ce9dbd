"""Inputs of a bucket that serves smaller sizes too: its dims are marked dynamic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from warmup.buckets.bucket import Bucket
from warmup.core.errors import ModelError
from warmup.inductor.dynamic_dims import mark_range
from warmup.models.loading import Inputs


def mark_inputs(make: Callable[[Bucket], Inputs], bucket: Bucket) -> Inputs:
    """Return the inputs of *bucket* with each dim marked that has a range.

    Which dims those are follows from the inputs that *make* gives for the lower end.

    Raises:
        ModelError: a dim grows with a size of the bucket, and is not that size.
    """
    made = make(bucket)
    leaves = _leaves(made)
    for name, low in bucket.lows:
        size = bucket.size_of(name)
        smaller = _leaves(make(bucket.at({name: low})))
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
    return made


def sizes_within(bucket: Bucket) -> tuple[Bucket, ...]:
    """Return the lower end and the middle of what *bucket* serves; nothing for one size alone."""
    if not bucket.lows:
        return ()
    lows = dict(bucket.lows)
    middle = {name: (low + size) // 2 for name, size in bucket.sizes if (low := lows.get(name))}
    return tuple(dict.fromkeys([bucket.at(lows), bucket.at(middle)]))


def _leaves(inputs: Inputs) -> list[Any]:
    return torch.utils._pytree.tree_leaves((inputs.args, inputs.kwargs))  # noqa: SLF001  torch's own tree walk has no public name
