"""Grouped products on a GPU: library and template are timed and compared, and the row is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.table.store import read

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a GPU from Hopper on",
)

MODEL = """
import torch
from torch import nn

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(8, 512, 1024, dtype=torch.bfloat16) / 32)

    def forward(self, x, ends):
        return torch._grouped_mm(x, self.weights.transpose(-2, -1), ends)

def example_inputs(seqlen):
    ends = torch.arange(1, 9, dtype=torch.int32) * (seqlen // 8)
    return torch.randn(seqlen, 1024, dtype=torch.bfloat16), ends
"""


def test_experts_have_a_row_of_candidates_that_agree(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    """Dozens of tiles were tried, and none computed something else than the library."""
    model = tmp_path / "experts.py"
    model.write_text(MODEL)
    table = built(tmp_path, f"{model}:Experts", 1024)
    ((key, row),) = [
        (key, row) for key, row in read(table).rows.items() if key.startswith("grouped_mm ")
    ]
    assert " over=m m=1024 n=512 k=1024 bf16 " in key
    assert row.evidence.tried > 20
    assert "wrong" not in {reason for reason, _ in row.evidence.rejected}
