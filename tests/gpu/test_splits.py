"""Split reductions on a GPU: measured with their regions, and every number of parts is forced."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.keys.split import split_into
from warmup.table import Table
from warmup.table.store import read, write

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Run = Callable[..., str]
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
SERVE = """
import json, re, sys, torch, warmup
from torch._inductor.utils import run_and_get_code
from warmup.inductor import connect
from warmup.models.loading import load_model
model = load_model(sys.argv[1])
module = model.module.cuda()
given = [each.cuda() for each in model.example_inputs(seqlen=1370)]
with connect().count_benchmarks() as sites, torch.no_grad():
    handle = warmup.install(sys.argv[2], on_miss=sys.argv[3])
    found, codes = run_and_get_code(torch.compile(module, dynamic=False), *given)
    handle.close()
    expected = module(*given)
    wanted = module.float()(*(each.float() for each in given))
def error(outs):
    return [((a.float() - b).norm() / b.norm()).item() for a, b in zip(outs, wanted)]
print("RESULT", json.dumps({"sites": dict(sites),
    "hits": sum(key.startswith("split ") for key in handle.report().hits),
    "kernels": len(re.findall(r"triton_\\w+\\.run\\(", codes[0])),
    "error": max(error(found)), "eager": max(error(expected))}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model's file, as commands name it: a group norm, and a mean over rows."""
    path = tmp_path_factory.mktemp("model") / "pooled.py"
    path.write_text(MODEL)
    return f"{path}:Pooled"


@pytest.fixture(scope="module")
def table(run: Run, model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the model for 1370 rows."""
    out = tmp_path_factory.mktemp("table") / "pooled.json"
    words = ("--model", model, "--seqlens", "1370", "--out", str(out))
    run(tmp_path_factory.mktemp("caches"), "-m", "warmup", "build", *words)
    return out


def splits(table: Table) -> list[str]:
    return [key for key in table.rows if key.startswith("split ")]


def serve(run: Run, model: str, table: Path, folder: Path, on_miss: str) -> dict[str, Any]:
    out = run(folder, "-c", SERVE, model, str(table), on_miss)
    found: dict[str, Any] = json.loads(out.split("RESULT ")[1])
    return found


def test_every_number_of_parts_was_measured(table: Path) -> None:
    """Both reductions have a row, which is no slower than inductor's rule, beyond a near tie."""
    built = read(table)
    assert len(splits(built)) == 2
    for key in splits(built):
        evidence = built.rows[key].evidence
        assert evidence.tried == 4, key
        assert evidence.rejected == (), key
        assert evidence.library_us is not None
        assert evidence.time_us <= evidence.library_us * (1 + (evidence.band or 0)), key


def test_the_table_is_served_without_measuring(
    run: Run, model: str, table: Path, tmp_path: Path
) -> None:
    """Strict serving has a hit for each split reduction and measures nothing."""
    found = serve(run, model, table, tmp_path, "strict")
    assert (found["sites"], found["hits"]) == ({}, 2)
    assert found["error"] <= 1.5 * found["eager"] + 1e-3


@pytest.mark.parametrize("parts", [1, 2])
def test_every_number_of_parts_is_forced(
    run: Run, model: str, table: Path, tmp_path: Path, parts: int
) -> None:
    """Two kernels for each reduction that is split, and fewer where it is not; results are equal.

    What follows a group norm that is split has a kernel of its own.
    """
    built = read(table)
    rows = {key: replace(built.rows[key], winner=split_into(parts)) for key in splits(built)}
    path = tmp_path / "forced.json"
    write(path, replace(built, rows={**built.rows, **rows}))
    found = serve(run, model, path, tmp_path, "fallback")
    assert found["hits"] == 2
    assert (found["kernels"] < 5) if parts == 1 else (found["kernels"] == 5)
    assert found["error"] <= 1.5 * found["eager"] + 1e-3
