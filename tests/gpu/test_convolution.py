"""Convolutions on a GPU: library and templates are timed alike, and no time is beyond the peaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.core.method import L2, Launch
from warmup.measuring.clock import batch_of
from warmup.table.review import review, review_table
from warmup.table.store import read

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MODEL = """
import torch
from torch import nn

class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 768, 14, stride=14, dtype=torch.bfloat16)

    def forward(self, x):
        return self.embed(x)

def example_inputs(seqlen):
    return (torch.randn(seqlen, 3, 518, 518, dtype=torch.bfloat16),)
"""


def test_templates_take_the_time_that_their_operations_need(
    built: Callable[..., Path], tmp_path: Path
) -> None:
    """Several candidates have a time, none is implausible, and a review doubts none."""
    model = tmp_path / "patches.py"
    model.write_text(MODEL)
    table = built(tmp_path, f"{model}:Patches", 8)
    rows = {key: row for key, row in read(table).rows.items() if key.startswith("convolution ")}
    ((key, row),) = rows.items()
    assert row.evidence.tried > 5
    assert "implausible" not in {reason for reason, _ in row.evidence.rejected}
    assert [doubt for doubt in review(review_table(read(table))) if doubt.level == "wrong"] == [], (
        key
    )


def test_calls_that_launch_nothing_have_no_time() -> None:
    """An empty CUDA graph takes a microsecond, which would beat every kernel."""
    device = torch.device("cuda", 0)
    with pytest.raises(RuntimeError, match="launches nothing on the stream"):
        batch_of(lambda _number: None, device, Launch.CUDAGRAPH, L2.COLD, 1)
    busy = torch.zeros(1 << 20, device=device)
    assert batch_of(lambda _number: busy.add_(1), device, Launch.CUDAGRAPH, L2.COLD, 1).time() > 0
