"""Which dims of a model's inputs grow with a size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from warmup.core.buckets import Bucket
from warmup.core.errors import ModelError
from warmup.models.loading import Inputs
from warmup.serving.compiled_buckets import find_dims


class Masked(nn.Module):
    """A model with nested inputs, and further inputs by keyword."""

    def forward(self, x: torch.Tensor, *, batch: Any = None, **more: Any) -> torch.Tensor:
        """Return x."""
        del batch, more
        return x


def found(make: Any, **sizes: int) -> dict[str, dict[int, str]]:
    """Return the dims of the inputs that *make* returns for *sizes*, by keyword."""
    return find_dims(
        Masked(), lambda bucket: make(**dict(bucket.sizes)), Bucket(tuple(sizes.items()))
    )


def test_dims_are_found_by_path_and_number() -> None:
    """In positional and keyword arguments, dicts and lists; of one size or two, also equal ones."""

    def make(rows: int, seqlen: int) -> Inputs:
        batch = {"mask": [1, torch.ones(seqlen)], "scale": torch.ones(8)}
        named = {"batch": batch, "bias": torch.ones(4, seqlen)}
        return Inputs((torch.ones(rows, 4, seqlen),), named)

    expected = {"x": {0: "rows", 2: "seqlen"}, "batch.mask.1": {0: "seqlen"}, "bias": {1: "seqlen"}}
    assert found(make, rows=8, seqlen=16) == expected
    assert found(make, rows=8, seqlen=8) == expected
    assert found(make, rows=1, seqlen=1) == expected


def test_inputs_that_cannot_have_a_range_are_refused() -> None:
    """The error names the input and both of its sizes, or another reason."""
    for make, message in (
        (lambda n: Inputs((torch.ones(2 * n),), {}), "input x, dim 0 is 32 where n=16, and 2"),
        (lambda n: Inputs((torch.ones(4),), {"n": n}), "no input grows with n"),
        (lambda n: Inputs((torch.ones((1,) * n),), {}), "n=16 and n=1 are not alike"),
        (lambda n: Inputs((), {"batch": [torch.ones(4)] * n}), "n=16 and n=1 are not alike"),
        (lambda n: Inputs((torch.ones(n), 2), {}), "forward does not take the inputs"),
    ):
        with pytest.raises(ModelError, match=message):
            found(make, n=16)
