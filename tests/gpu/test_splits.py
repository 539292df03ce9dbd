"""Split reductions on a GPU: measured with their regions, and every number of parts is forced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.keys.reduction import split_into
from warmup.table.schema import Table
from warmup.table.store import read, write

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Serve = Callable[..., dict[str, Any]]
MODEL = """
import torch
from torch import nn

class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(32, 320, dtype=torch.bfloat16)

    def forward(self, x, y):
        return torch.nn.functional.silu(self.norm(x)), y.mean(1)

def example_inputs(seqlen):
    like = {"dtype": torch.bfloat16}
    return torch.randn(2, 320, 64, 64, **like), torch.randn(8, seqlen, 768, **like)
"""
SEQLEN = 1370


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model's file, as commands name it: a group norm, and a mean over rows."""
    path = tmp_path_factory.mktemp("model") / "pooled.py"
    path.write_text(MODEL)
    return f"{path}:Pooled"


@pytest.fixture(scope="module")
def table(built: Callable[..., Path], model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("table"), model, SEQLEN)


def splits(table: Table) -> list[str]:
    return [key for key in table.rows if key.startswith("split ")]


def test_every_number_of_parts_was_measured(table: Path) -> None:
    """Both reductions have a row; each number of parts has a time, and computes the same."""
    measured = read(table)
    assert len(splits(measured)) == 2
    for key in splits(measured):
        evidence = measured.rows[key].evidence
        assert (evidence.tried, evidence.rejected) == (4, ()), key
        assert evidence.library_us is not None
        assert len(evidence.ranking.split(";")) == 4, key


def test_the_table_is_served_without_measuring(
    serve_reductions: Serve, model: str, table: Path, tmp_path: Path
) -> None:
    found = serve_reductions(tmp_path, model, SEQLEN, table, "strict")
    assert (found["sites"], found["hits"]["split"]) == ({}, 2)
    assert found["error"] <= 1.5 * found["eager"] + 1e-3


@pytest.mark.parametrize("parts", [1, 2])
def test_every_number_of_parts_is_forced(
    serve_reductions: Serve, model: str, table: Path, tmp_path: Path, parts: int
) -> None:
    """Two kernels for each reduction that is split, fewer where it is not; results are equal."""
    measured = read(table)
    rows = {key: replace(measured.rows[key], winner=split_into(parts)) for key in splits(measured)}
    path = tmp_path / "forced.json"
    write(path, replace(measured, rows={**measured.rows, **rows}))
    found = serve_reductions(tmp_path, model, SEQLEN, path, "fallback")
    assert found["hits"]["split"] == 2
    count = len(found["kernels"])
    assert (count < 5) if parts == 1 else (count == 5)
    assert found["error"] <= 1.5 * found["eager"] + 1e-3
