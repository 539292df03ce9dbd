"""Templates for few rows on a GPU: every tile runs, is right, and is served."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Run = Callable[..., str]
OWN = "triton::warmup_mm_"
MODEL = ("--model", "examples/products.py:Plain", "--dims", "n=4096;k=4096;m=1,8,33")
SERVE = """
import collections, json, sys, torch, warmup
from warmup.inductor import connect
worst = 0.0
linear = torch.nn.Linear(4096, 4096, bias=False, device="cuda", dtype=torch.bfloat16)
with connect().count_benchmarks() as sites, torch.no_grad():
    handle = warmup.install(sys.argv[1], on_miss="strict")
    served = torch.compile(linear, dynamic=False)
    for rows in (1, 8, 33):
        x = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
        found, expected = served(x), x.float() @ linear.weight.float().T
        worst = max(worst, ((found - expected).norm() / expected.norm()).item())
    hits = collections.Counter(key.split()[0] for key in handle.report().hits)
    handle.close()
print("RESULT", json.dumps({"sites": dict(sites), "hits": hits, "worst": worst}))
"""


@pytest.fixture(scope="module")
def built(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A table of a linear for 1, 8 and 33 rows, and the times of all candidates."""
    folder = tmp_path_factory.mktemp("table")
    table = folder / "t.json"
    words = ("-m", "warmup", "build", *MODEL, "--out", str(table), "--json")
    return table, json.loads(run(tmp_path_factory.mktemp("caches"), *words))["problems"]


def test_every_tile_runs_and_is_right(built: tuple[Path, list[dict[str, Any]]]) -> None:
    """No candidate of the templates is rejected: its output is checked before its time counts."""
    _, lines = built
    products = [line["candidates"] for line in lines if line["key"].startswith("mm ")]
    own = [[one for one in tried if OWN in one["choice"]] for tried in products]
    # Of 33 rows and the same padded to 40, both timed, the report has the product of the winner.
    assert sorted(map(len, own)) == [4, 7, 10]
    assert [one for tried in own for one in tried if one["rejection"] is not None] == []


def test_the_table_serves_few_rows(
    run: Run, built: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Strictly, with nothing measured and right outputs, whichever kernel won."""
    found = json.loads(run(tmp_path, "-c", SERVE, str(built[0])).split("RESULT ")[1])
    # Whether the 33 rows are padded is asked too.
    assert (found["sites"], found["hits"]) == ({}, {"mm": 3, "pad": 1})
    assert found["worst"] < 1e-2
