"""Persistent or looped reductions on a GPU: both are measured, and rows are forced at serving."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.core.rows import Winner
from warmup.keys.reduction import LOOPED, PERSISTENT
from warmup.table import Table
from warmup.table.store import read, write

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Run = Callable[..., str]
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
SERVE = """
import json, re, sys, torch, warmup
from torch._inductor.utils import run_and_get_code
from warmup.inductor import connect
from warmup.models.loading import load_model
model = load_model(sys.argv[1])
module = model.module.cuda()
given = [each.cuda() for each in model.example_inputs(seqlen=8192)]
with connect().count_benchmarks() as sites, torch.no_grad():
    handle = warmup.install(sys.argv[2], on_miss=sys.argv[3])
    found, codes = run_and_get_code(torch.compile(module, dynamic=False), *given)
    handle.close()
    expected = module(*given)
    wanted = module.float()(*(each.float() for each in given))
def error(outs):
    return [((a.float() - b).norm() / b.norm()).item() for a, b in zip(outs, wanted)]
print("RESULT", json.dumps({"sites": dict(sites),
    "hits": sum(key.startswith("reduction ") for key in handle.report().hits),
    "kernels": re.findall(r"(triton_(?:per|red))_\\w+\\.run\\(", codes[0]),
    "error": max(error(found)), "eager": max(error(expected))}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model's file, as commands name it."""
    path = tmp_path_factory.mktemp("model") / "norms.py"
    path.write_text(MODEL)
    return f"{path}:Norms"


@pytest.fixture(scope="module")
def table(run: Run, model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the model for 8192 rows."""
    out = tmp_path_factory.mktemp("table") / "norms.json"
    words = ("--model", model, "--seqlens", "8192", "--out", str(out))
    run(tmp_path_factory.mktemp("caches"), "-m", "warmup", "build", *words)
    return out


def reductions(table: Table) -> list[str]:
    return [key for key in table.rows if key.startswith("reduction ")]


def serve(run: Run, model: str, table: Path, folder: Path, on_miss: str) -> dict[str, Any]:
    out = run(folder, "-c", SERVE, model, str(table), on_miss)
    found: dict[str, Any] = json.loads(out.split("RESULT ")[1])
    return found


def test_both_ways_were_measured(table: Path) -> None:
    """Each reduction has a row, whose winner is no slower than the kernel of inductor's rule."""
    built = read(table)
    assert reductions(built)
    for key in reductions(built):
        evidence = built.rows[key].evidence
        assert (evidence.tried, evidence.rejected) == (2, ()), key  # they compute the same
        assert evidence.library_us is not None
        assert evidence.time_us <= evidence.library_us * 1.01, key


def test_the_table_is_served_without_measuring(
    run: Run, model: str, table: Path, tmp_path: Path
) -> None:
    """Strict serving has a hit for each reduction and measures nothing."""
    found = serve(run, model, table, tmp_path, "strict")
    assert found["sites"] == {}
    assert found["hits"] == len(found["kernels"]) == len(reductions(read(table)))
    assert found["error"] <= 1.5 * found["eager"] + 1e-3


@pytest.mark.parametrize("way", KERNELS)
def test_either_way_is_forced(
    run: Run, model: str, table: Path, tmp_path: Path, way: Winner
) -> None:
    """With the same winner in every row all kernels are made that way, and compute the same."""
    built = read(table)
    rows = {key: replace(built.rows[key], winner=way) for key in reductions(built)}
    path = tmp_path / "forced.json"
    write(path, replace(built, rows={**built.rows, **rows}))
    found = serve(run, model, path, tmp_path, "fallback")
    assert set(found["kernels"]) == {KERNELS[way]}
    assert found["error"] <= 1.5 * found["eager"] + 1e-3
