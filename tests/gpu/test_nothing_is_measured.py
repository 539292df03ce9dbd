"""A block with RMSNorm, attention, SwiGLU and an unaligned layer, served from a table on a GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROOT = Path(__file__).resolve().parents[2]
Serve = Callable[..., dict[str, Any]]
Asked = dict[bool, set[str]]
PROGRAM = ROOT / "tests/programs/serve_block.py"


@pytest.fixture(scope="module")
def serve(run: Callable[..., str]) -> Serve:
    """``serve(folder, **case)``: serve one case in a fresh process; what it reports."""

    def serve(folder: Path, **case: Any) -> dict[str, Any]:
        out = run(folder, str(PROGRAM), json.dumps({"model": "small", **case}))
        result: dict[str, Any] = json.loads(out.split("RESULT ")[1])
        return result

    return serve


@pytest.fixture(scope="module")
def table(run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the small block, unaligned inside, for two buckets; its report is beside it."""
    kept = os.environ.get("WARMUP_TEST_TABLE")  # keeps the table of one run for the next
    path = Path(kept) if kept else tmp_path_factory.mktemp("table") / "block.json"
    if path.exists():
        return path
    said = run(
        tmp_path_factory.mktemp("caches"),
        *("-m", "warmup", "build", "--model", "examples/vision_block.py:small", "--json"),
        *("--input", "hidden_states=[seqlen,128]:bf16"),
        *("--seqlens", "64,256", "--out", str(path)),
    )
    path.with_suffix(".said").write_text(said)
    return path


@pytest.fixture(scope="module")
def asked(table: Path) -> Asked:
    """The keys that the build asked for in all buckets: of the model as it is, and prepared."""
    buckets = json.loads(table.with_suffix(".said").read_text())["buckets"]
    found: Asked = {False: set(), True: set()}
    for bucket in buckets:
        found[bucket["weights_padded"]].update(bucket["keys"])
    return {**found, True: found[True] or found[False]}


def test_the_table_has_rows_of_every_kind(table: Path) -> None:
    """The build wrote rows of the kinds that inductor asks for, and about the unaligned weights."""
    rows = json.loads(table.read_text())["rows"]
    assert sorted(rows) == ["gemm", "launch", "pad", "reduction", "weight"]


@pytest.mark.parametrize(
    "mode", ["default", "max-autotune", "max-autotune-no-cudagraphs", "max-autotune-gemm"]
)
def test_with_empty_caches_nothing_is_measured(
    serve: Serve, table: Path, asked: Asked, tmp_path: Path, mode: str
) -> None:
    """Whatever mode the caller keeps: all that the build asked hits, no benchmark at any place."""
    result = serve(tmp_path, table=str(table), seqlens=[64, 256], mode=mode, uncovered="forbid")
    assert (result["benchmarker"], result["autotuner"]) == (0, 0)
    assert (result["misses"], result["uncovered"]) == ({}, {})
    assert set(result["hits"]) == asked[False]
    assert max(result["errors"]) < 2e-2


def test_a_prepared_model_is_not_measured_either(
    serve: Serve, table: Path, asked: Asked, tmp_path: Path
) -> None:
    """With its weights padded where that pays: all hits, no benchmark, and as right as before."""
    case = {"seqlens": [64, 256], "mode": "default", "uncovered": "forbid", "prepared": True}
    result = serve(tmp_path, table=str(table), **case)
    assert (result["benchmarker"], result["autotuner"]) == (0, 0)
    assert (result["misses"], result["uncovered"]) == ({}, {})
    assert set(result["hits"]) == asked[True]
    assert max(result["errors"]) < 2e-2


def test_warm_caches_answer_under_the_same_table(serve: Serve, table: Path, tmp_path: Path) -> None:
    """A second process with the first one's caches measures nothing and is not silent."""
    case = {"table": str(table), "seqlens": [64], "mode": "default", "uncovered": "forbid"}
    serve(tmp_path, **case)
    result = serve(tmp_path, **case)
    assert (result["benchmarker"], result["autotuner"], result["silent"]) == (0, 0, False)
    assert result["from_cache"] > 0


def test_an_unseen_bucket_is_counted_and_not_measured(
    serve: Serve, table: Path, tmp_path: Path
) -> None:
    """A size that was not built falls back in every kind, without a benchmark, and is right."""
    result = serve(tmp_path, table=str(table), seqlens=[96], mode="default", on_miss="fallback")
    assert (result["benchmarker"], result["autotuner"]) == (0, 0)
    assert {key.split(" ")[0] for key in result["misses"]} >= {"addmm", "launch"}
    assert max(result["errors"]) < 2e-2


def test_without_a_table_the_same_start_measures(serve: Serve, table: Path, tmp_path: Path) -> None:
    """The counters of this file do count: default mode without a table measures at both places."""
    del table
    result = serve(tmp_path, table=None, seqlens=[256], mode="default")
    assert result["benchmarker"] > 0
    assert result["autotuner"] > 0


def test_other_products_and_a_convolution_are_not_measured(
    run: Callable[..., str], serve: Serve, tmp_path: Path
) -> None:
    """int_mm, scaled_mm and a convolution have rows: nothing is measured."""
    path = tmp_path / "mixed.json"
    run(
        tmp_path / "build",
        *("-m", "warmup", "build", "--model", "tests/programs/models/mixed_ops.py:MixedOps"),
        *("--seqlens", "64", "--out", str(path)),
    )
    rows = json.loads(path.read_text())["rows"]
    assert {key.split(" ")[0] for key in rows["gemm"]} >= {"int_mm", "scaled_mm"}
    assert len(rows["convolution"]) == 1
    case = {"table": str(path), "seqlens": [64], "mode": "default", "model": "mixed"}
    result = serve(tmp_path / "serve", **case, uncovered="forbid")
    assert (result["benchmarker"], result["autotuner"]) == (0, 0)
    assert (result["misses"], result["uncovered"], result["unused"]) == ({}, {}, [])
    assert max(result["errors"]) < 2e-2
