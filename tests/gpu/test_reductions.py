"""Persistent or looped reductions on a GPU: both are measured, and rows are forced at serving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.core.rows import Winner
from warmup.keys.reduction import LOOPED, PERSISTENT
from warmup.table.schema import Table
from warmup.table.store import read, write

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Serve = Callable[..., dict[str, Any]]
KERNELS = {PERSISTENT: "triton_per", LOOPED: "triton_red"}
MODEL = """
import torch
from torch import nn

class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        like = {"dtype": torch.bfloat16}
        self.narrow = nn.LayerNorm(768, **like)
        self.wide = nn.RMSNorm(4096, **like)

    def forward(self, x, y):
        return self.narrow(x), self.wide(y), torch.softmax(y, -1)

def example_inputs(seqlen):
    like = {"dtype": torch.bfloat16}
    return torch.randn(seqlen, 768, **like), torch.randn(seqlen, 4096, **like)
"""
SEQLEN = 8192


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model's file, as commands name it."""
    path = tmp_path_factory.mktemp("model") / "norms.py"
    path.write_text(MODEL)
    return f"{path}:Norms"


@pytest.fixture(scope="module")
def table(built: Callable[..., Path], model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("table"), model, SEQLEN)


def reductions(table: Table) -> list[str]:
    return [key for key in table.rows if key.startswith("reduction ")]


def kernels(found: dict[str, Any]) -> list[str]:
    return [name for name in found["kernels"] if name in KERNELS.values()]


def test_both_ways_were_measured(table: Path) -> None:
    """Each reduction has a row, and both of its kernels have a time and compute the same."""
    measured = read(table)
    assert reductions(measured)
    for key in reductions(measured):
        evidence = measured.rows[key].evidence
        assert (evidence.tried, evidence.rejected) == (2, ()), key
        assert evidence.library_us is not None


def test_the_table_is_served_without_measuring(
    serve_reductions: Serve, model: str, table: Path, tmp_path: Path
) -> None:
    found = serve_reductions(tmp_path, model, SEQLEN, table, "strict")
    assert found["sites"] == {}
    assert found["hits"]["reduction"] == len(kernels(found)) == len(reductions(read(table)))
    assert found["error"] <= 1.5 * found["eager"] + 1e-3


@pytest.mark.parametrize("way", KERNELS)
def test_either_way_is_forced(
    serve_reductions: Serve, model: str, table: Path, tmp_path: Path, way: Winner
) -> None:
    """With the same winner in every row all kernels are made that way, and compute the same."""
    measured = read(table)
    rows = {key: replace(measured.rows[key], winner=way) for key in reductions(measured)}
    path = tmp_path / "forced.json"
    write(path, replace(measured, rows={**measured.rows, **rows}))
    found = serve_reductions(tmp_path, model, SEQLEN, path, "fallback")
    assert set(kernels(found)) == {KERNELS[way]}
    assert found["error"] <= 1.5 * found["eager"] + 1e-3
