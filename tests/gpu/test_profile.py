"""A trace of a real GPU: what is behind its kernels, one by one and in CUDA graphs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.bench.profile import RECORDED_CALLS
from warmup.core.rows import Family
from warmup.keys.registry import KINDS, kind_of
from warmup.table.store import read

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Run = Callable[..., str]
MODEL = ("--model", "examples/mlp.py:MLP", "--seqlens", "64,560", "--dtype", "bf16")


@pytest.fixture(scope="module")
def table(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the example MLP for two buckets, built by the command line."""
    path = tmp_path_factory.mktemp("table") / "mlp.json"
    run(tmp_path_factory.mktemp("caches"), "-m", "warmup", "build", *MODEL, "--out", str(path))
    return path


@pytest.fixture(scope="module", params=["default", "reduce-overhead"])
def profiled(
    request: pytest.FixtureRequest, run: Run, table: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """A trace of the MLP served from the table, and its profile."""
    folder = tmp_path_factory.mktemp("trace")
    trace = folder / "trace.json.gz"
    text = run(
        folder,
        *("-m", "warmup", "profile", *MODEL, "--table", str(table), "--mode", request.param),
        *("--out", str(trace), "--json"),
    )
    return trace, json.loads(text)


def kernels_of(profile: Any) -> list[Any]:
    return [kernel for bucket in profile["buckets"] for kernel in bucket["kernels"]]


def test_the_device_time_is_attributed(profiled: tuple[Path, Any]) -> None:
    """At most 1 % of the device's time has neither a row nor a reason to have none."""
    assert profiled[1]["shares"]["unknown"] <= 0.01
    assert profiled[1]["shares"]["row"] > 0


def test_every_matmul_of_the_table_ran_as_often_as_the_model(
    profiled: tuple[Path, Any], table: Path
) -> None:
    """Each GEMM row is behind kernels of every call, which name a generated kernel by its row."""
    gemms = {key for key in read(table).rows if kind_of(key) is KINDS["gemm"]}
    ran = {kernel["keys"][0]: kernel for kernel in kernels_of(profiled[1]) if kernel["keys"]}
    assert gemms <= ran.keys()
    for key in gemms:
        assert ran[key]["count"] % RECORDED_CALLS == 0
        is_template = read(table).rows[key].winner.family is Family.TEMPLATE
        assert ran[key]["name"].startswith("triton_tem_") == is_template


def test_matmuls_have_their_operations(profiled: tuple[Path, Any]) -> None:
    """A call of the MLP has 2 x rows x 256 x 1024 operations twice, templates included."""
    for bucket in profiled[1]["buckets"]:
        rows = int(bucket["bucket"].partition("=")[2])
        flops = [kernel["flops"] for kernel in bucket["kernels"] if kernel["flops"]]
        assert flops == [2 * rows * 256 * 1024] * 2


def test_without_the_plan_shapes_find_the_same_rows(
    profiled: tuple[Path, Any], run: Run, table: Path, tmp_path: Path
) -> None:
    """A server's own trace has no plan; where operators are in it, no row is another one."""
    import gzip

    document = json.loads(gzip.decompress(profiled[0].read_bytes()))
    del document["warmup"]
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(document))
    text = run(tmp_path, "-m", "warmup", "profile", str(bare), "--table", str(table), "--json")
    planned = {
        (kernel["name"], key)
        for kernel in kernels_of(profiled[1])
        if kernel["winner"]
        for key in kernel["keys"]
    }
    found = {
        (kernel["name"], key)
        for kernel in kernels_of(json.loads(text))
        if kernel["winner"]
        for key in kernel["keys"]
    }
    assert found <= planned
