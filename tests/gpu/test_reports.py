"""Profiles, benchmarks and phases of a real GPU."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.bench.trace import RECORDED_CALLS
from warmup.core.rows import Family
from warmup.keys.registry import KINDS, kind_of
from warmup.table.store import read

Run = Callable[..., str]
MODEL = ("--model", "examples/mlp.py:MLP", "--seqlens", "64,560", "--dtype", "bf16")


@pytest.fixture(scope="module")
def table(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the example MLP for two buckets, built by the command line."""
    path = tmp_path_factory.mktemp("table") / "mlp.json"
    run(tmp_path_factory.mktemp("caches"), "-m", "warmup", "build", *MODEL, "--out", path)
    return path


def kernels_of(profile: Any) -> list[Any]:
    return [kernel for bucket in profile["buckets"] for kernel in bucket["kernels"]]


def rows_behind(profile: Any) -> set[tuple[str, str]]:
    chosen = [kernel for kernel in kernels_of(profile) if kernel["winner"]]
    return {(kernel["name"], key) for kernel in chosen for key in kernel["keys"]}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_what_is_behind_the_kernels_of_a_trace(
    run: Run, table: Path, tmp_path: Path, mode: str
) -> None:
    """At most 1 % of the device's time has neither a row nor a reason to have none.

    Each GEMM row is behind kernels of every call, which name a generated kernel by its row, and
    have their operations. A server's own trace has no plan; no row in its profile is another row.
    """
    trace, bare = tmp_path / "trace.json.gz", tmp_path / "bare.json"
    words = (*MODEL, "--table", table, "--mode", mode, "--out", trace, "--json")
    profile = json.loads(run(tmp_path, "-m", "warmup", "profile", *words))
    assert profile["shares"]["unknown"] <= 0.01
    assert profile["shares"]["row"] > 0
    rows = read(table).rows
    gemms = {key for key in rows if kind_of(key) is KINDS["gemm"]}
    ran = {kernel["keys"][0]: kernel for kernel in kernels_of(profile) if kernel["keys"]}
    assert gemms <= ran.keys()
    for key in gemms:
        assert ran[key]["count"] % RECORDED_CALLS == 0
        is_template = rows[key].winner.family is Family.TEMPLATE
        assert ran[key]["name"].startswith("triton_tem_") == is_template
    for bucket in profile["buckets"]:
        size = int(bucket["bucket"].partition("=")[2])
        flops = [kernel["flops"] for kernel in bucket["kernels"] if kernel["flops"]]
        assert flops == [2 * size * 256 * 1024] * 2
    document = json.loads(gzip.decompress(trace.read_bytes()))
    del document["warmup"]
    bare.write_text(json.dumps(document))
    text = run(tmp_path, "-m", "warmup", "profile", bare, "--table", table, "--json")
    assert rows_behind(json.loads(text)) <= rows_behind(profile)


LAZY = """
import torch

class Lazy:
    shapes = ((512, 1024),)

    def inputs(self, shape):
        return (torch.randn(shape),)

    def eager(self, x):
        return torch.softmax(x, -1)

    def right(self, x):
        return torch.softmax(x, -1)

    def nothing(self, x):
        return torch.empty_like(x).detach()
"""


def test_layers_and_matmuls_run_from_a_table_in_cuda_graphs(run: Run, tmp_path: Path) -> None:
    """RMSNorm and softmax, forward from launch rows of a table; a product from its rows."""
    words = ("layers", "rmsnorm", "softmax", "--backends", "compiled,table", "--shapes", "512x1024")
    run(tmp_path, "-m", "warmup", "bench", *words, "--out", tmp_path)
    products = ("mm", "--shapes", "128x512x256", "--rounds", "6")
    run(tmp_path, "-m", "warmup", "bench", *products, "--out", tmp_path)
    for name, hits in (("layers", 2), ("mm", 1)):
        found = json.loads((tmp_path / f"bench-{name}.json").read_text(encoding="utf-8"))
        assert [one["reason"] for one in found["cells"] if one["reason"]] == [], name
        assert sum(one["backend"] == "table" for one in found["cells"]) == hits
        assert all(count > 0 for count in found["table_hits"].values())


def test_a_backend_that_writes_nothing_is_wrong(start: Callable[..., Any], tmp_path: Path) -> None:
    """Its output has the memory of the right output before it, which is poisoned in between."""
    (tmp_path / "lazy.py").write_text(LAZY, encoding="utf-8")
    words = ("layers", f"{tmp_path}/lazy.py:Lazy", "--backends", "right,nothing", "--rounds", 6)
    done = start(tmp_path, "-m", "warmup", "bench", *words, "--out", tmp_path)
    assert done.returncode == 1, done.stderr[-3000:]
    found = json.loads((tmp_path / "bench-layers.json").read_text(encoding="utf-8"))
    assert [(one["backend"], one["is_wrong"]) for one in found["cells"][:3]] == [
        ("eager", False),
        ("right", False),
        ("nothing", True),
    ]


PHASES = """
import json, torch
from warmup.core.phases import Phase, PhaseClock
from warmup.inductor import connect

def model(x):
    return torch.relu(x @ x) * 2

def call(mode):
    compiled = torch.compile(model, dynamic=False, mode=mode)
    clock.take()
    with clock.phase(Phase.FIRST_CALLS):
        compiled(x)
        torch.cuda.synchronize()
    return list(clock.take())

x = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
clock, found = PhaseClock(), {}
with connect().time_phases(clock), torch.no_grad():
    for name, mode in (
        ("default", None),
        ("warm", None),
        ("tuned", "max-autotune-no-cudagraphs"),
    ):
        torch.compiler.reset()
        found[name] = call(mode)
print("RESULT", json.dumps(found))
"""


def test_the_phases_of_a_start(result_of: Callable[..., Any], tmp_path: Path) -> None:
    """A first start waits for its kernels, in whichever process they compile.

    Over warm caches nothing is lowered, and max-autotune measures.
    """
    entered = result_of(tmp_path, "-c", PHASES)
    phases = {"tracing", "aot", "lowering", "scheduling", "code_generation", "waiting_for_kernels"}
    assert phases <= set(entered["default"])
    assert "tracing" in entered["warm"]
    assert set(entered["warm"]).isdisjoint({"lowering", "scheduling", "code_generation"})
    assert {"lowering", "measuring"} <= set(entered["tuned"])
