"""Build, serve and audit on a real GPU. Skipped where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.table.store import read

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Run = Callable[..., str]
SERVE = """
import json, sys, torch, warmup
sys.path.insert(0, "examples")
from mlp import MLP
from warmup.inductor import connect
torch.manual_seed(0)
model = MLP().eval().cuda().bfloat16()
with connect().count_benchmarks() as sites, torch.no_grad():
    handle = warmup.install(sys.argv[1], on_miss=sys.argv[2])
    served = torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=False)
    errors = []
    for seqlen in map(int, sys.argv[3].split(",")):
        x = torch.randn(seqlen, 256, device="cuda", dtype=torch.bfloat16)
        expected = model(x)
        errors.append(((served(x) - expected).norm() / expected.norm()).item())
report = handle.report()
handle.close()
print("RESULT", json.dumps({"errors": errors, "sites": dict(sites),
    "hits": sum(report.hits.values()), "keys": sorted(report.hits),
    "misses": sum(report.misses.values()), "unused": len(report.unused)}))
"""


@pytest.fixture(scope="module")
def table(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the example MLP for two buckets, built by the command line."""
    path = tmp_path_factory.mktemp("table") / "mlp.json"
    run(
        tmp_path_factory.mktemp("caches"),
        *("-m", "warmup", "build", "--model", "examples/mlp.py:MLP"),
        *("--seqlens", "64,560", "--dtype", "bf16", "--out", str(path)),
    )
    return path


def test_served_from_the_table_no_gemm_is_benchmarked(
    run: Run, table: Path, tmp_path: Path
) -> None:
    """With empty caches, every row is asked for once, and nothing is measured."""
    out = run(tmp_path, "-c", SERVE, str(table), "strict", "64,560")
    result = json.loads(out.split("RESULT ")[1])
    assert result["keys"] == sorted(read(table).rows)
    assert result["hits"] == len(result["keys"])
    assert sum(key.startswith("addmm ") for key in result["keys"]) == 4
    assert result["misses"] == result["unused"] == 0
    assert not result["sites"]
    assert max(result["errors"]) < 2e-2


def test_an_unseen_bucket_falls_back_to_the_library(run: Run, table: Path, tmp_path: Path) -> None:
    """A size that was not built is a counted miss, still right, and still not benchmarked."""
    out = run(tmp_path, "-c", SERVE, str(table), "fallback", "96")
    result = json.loads(out.split("RESULT ")[1])
    # Two library products, and the two kernels that do what their epilogues did.
    assert (result["hits"], result["misses"]) == (0, 4)
    assert not result["sites"]
    assert max(result["errors"]) < 2e-2
