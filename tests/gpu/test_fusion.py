"""What a row says about fusion is what runs: kernels are counted on a GPU, skipped without."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.core.rows import Family, Row, Scope
from warmup.table.store import read, write

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Run = Callable[..., str]
MODEL = "tests/programs/models/vit_mlp.py"
SERVE = """
import json, sys, torch, warmup
from torch.profiler import ProfilerActivity, profile
from warmup.inductor import connect
from warmup.models.loading import load_model
model = load_model(sys.argv[1]).module.eval().cuda()
torch.manual_seed(0)
x = torch.randn(8, 1370, 768, device="cuda", dtype=torch.bfloat16)
with connect().count_benchmarks() as sites, torch.no_grad():
    handle = warmup.install(sys.argv[2], on_miss=sys.argv[3], audit_log=sys.argv[4])
    served = torch.compile(model, dynamic=False)
    served(x)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        found = served(x)
        torch.cuda.synchronize()
    handle.close()
    expected = model.float()(x.float())
kernels = [event.name for event in profiled.events()
    if event.device_type == torch.autograd.DeviceType.CUDA]
print("RESULT", json.dumps({"kernels": kernels, "sites": dict(sites),
    "error": ((found - expected).norm() / expected.norm()).item()}))
"""


@pytest.fixture(scope="module")
def table(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of a product with ReLU behind it, for 8 sequences of 1370."""
    path = tmp_path_factory.mktemp("table") / "relu.json"
    model = ("--model", f"{MODEL}:Relu", "--seqlens", "1370", "--out", str(path))
    run(tmp_path_factory.mktemp("caches"), "-m", "warmup", "build", *model)
    return path


def gemm_row(path: Path) -> tuple[str, Row]:
    rows = read(path).rows
    (key,) = (key for key in rows if key.startswith("addmm "))
    return key, rows[key]


def serve(run: Run, table: Path, folder: Path, on_miss: str = "strict") -> dict[str, Any]:
    """Serve the model, and return what ran and the options that its log says were contradicted."""
    log = folder / "audit.jsonl"
    out = run(folder, "-c", SERVE, f"{MODEL}:Relu", str(table), on_miss, str(log))
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    contradicted = [one["option"] for one in events if one["event"] == "policy.contradicted"]
    result: dict[str, Any] = json.loads(out.split("RESULT ")[1])
    return {**result, "contradicted": contradicted}


def test_the_row_counts_the_kernels_that_run(run: Run, table: Path, tmp_path: Path) -> None:
    """Served by its row, the model launches as many kernels as the evidence says."""
    _, row = gemm_row(table)
    assert row.evidence.scope is Scope.FUSED
    assert row.evidence.library_kernels == 2
    served = serve(run, table, tmp_path)
    assert len(served["kernels"]) == row.evidence.kernels
    assert (served["sites"], served["contradicted"]) == ({}, [])
    assert served["error"] < 2e-2


@pytest.mark.parametrize(("fused", "kernels"), [(True, 1), (False, 2)])
def test_either_way_is_served(
    run: Run, table: Path, tmp_path: Path, fused: bool, kernels: int
) -> None:
    """The winner is forced fused, then not fused, behind a view; nothing is measured."""
    built = read(table)
    key, row = gemm_row(table)
    if row.winner.family is not Family.TEMPLATE:
        pytest.skip("the library's kernel won on this device, and nothing is fused into it")
    winner = replace(row.winner, fused=fused)
    forced = replace(built, rows={**built.rows, key: replace(row, winner=winner)})
    write(tmp_path / "forced.json", forced)
    # A fallback, since the activation's own kernel has no launch row where the winner was fused.
    served = serve(run, tmp_path / "forced.json", tmp_path, "fallback")
    assert len(served["kernels"]) == kernels
    assert (served["sites"], served["contradicted"]) == ({}, [])


def test_registers_are_read_from_the_loaded_kernel(table: Path) -> None:
    """A template's row has the registers and spills of its kernel, as the driver reports them."""
    _, row = gemm_row(table)
    is_template = row.winner.family is Family.TEMPLATE
    assert (row.evidence.registers is not None) == is_template
    assert (row.evidence.spills is not None) == is_template
