"""The first padded call of a bucket: rounding is told from an effect of padding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from warmup.core.buckets import DynamicDim, Interval, ShapePolicy
from warmup.serving.compiled_buckets import PaddedArtifact, ServedModel, TensorArgument


class Scaled(nn.Module):
    """Rows do not depend on each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return each row, scaled."""
        return 3 * x


class Centered(nn.Module):
    """Each row depends on the number of rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the difference of each row to the mean row."""
        return x - x.mean(0)


@pytest.mark.parametrize(("model", "is_padded"), [(Scaled(), True), (Centered(), False)])
def test_rounding_does_not_forbid_padding(model: nn.Module, *, is_padded: bool) -> None:
    """An artifact that is 5 % off for any input pads rows that do not depend on each other."""
    dim = DynamicDim("rows", ("x",), 0)
    arguments = (TensorArgument(model, dim),)
    served = ServedModel(model, arguments, ShapePolicy.PAD, None, {"f32": 1e-3})
    artifact = PaddedArtifact(served, {"rows": Interval(1, 8)})
    artifact._compiled = lambda x: 1.05 * model(x)
    x = 1 + torch.rand(5, 4)
    expected = model(x) * (1.05 if is_padded else 1)
    torch.testing.assert_close(artifact._serve(x), expected)
    assert served.uncompiled.total() == (0 if is_padded else 1)
