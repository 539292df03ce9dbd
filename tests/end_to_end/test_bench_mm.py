"""`bench mm` on a CPU: real compiles of tiny products, and the Triton kernel, interpreted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.core.errors import SettingsError
from warmup.table import Table
from warmup.table.store import write

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "import typer\nfrom warmup.cli.bench_mm import mm\ntyper.run(mm)\n"
NO_TRITON = "Triton has no CPU backend here"

# The first column computes something else, and the third cannot be had.
SPOILED = """
import json
import sys
from pathlib import Path
from types import MappingProxyType

import torch

from warmup.bench.matmul import columns
from warmup.bench.matmul.run import bench_mm


def fail(_operands):
    raise ValueError("spoiled\\nmore lines")


wrong = columns.Column(lambda a, b: torch.mm(a, b) * 1.5)
lazy = columns.Column(lambda a, b: torch.empty(a.shape[0], b.shape[1]).fill_(float("nan")))
columns._MAKERS = MappingProxyType(
    {**columns._MAKERS, "torch": lambda _: wrong, "triton": lambda _: lazy, "inductor-aten": fail}
)
report = bench_mm(
    shapes="16x32x8", dtype="f32", rounds=1, device="cpu", table=Path(sys.argv[1])
)
print(json.dumps(dict(report.shapes[0].dropped)))
"""

INTERPRETED = """
import torch

from warmup.bench.matmul.triton_kernel import multiply_with

BLOCKS = {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32}
for dtype in (torch.float32, torch.float16):
    for group in (1, 2, 8):
        for m, k, n in ((32, 64, 16), (33, 40, 17), (130, 100, 45), (1, 33, 70)):
            a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
            expected = a.double() @ b.double()
            found = multiply_with(a, b, {**BLOCKS, "GROUP_M": group}).double()
            error = ((found - expected).norm() / expected.norm()).item()
            assert error < (1e-6 if dtype is torch.float32 else 5e-4), (dtype, m, k, n, error)
"""

COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from warmup.bench.matmul.triton_kernel import CONFIGS, product_kernel

names = [parameter.name for parameter in product_kernel.params]
signature = {name: "*fp16" if name in "abc" else "constexpr" for name in names}
aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in "abc"}
for config in CONFIGS:
    constants = {**config.kwargs, "PRECISION": "ieee", "M": 128, "N": 1000, "K": 4096}
    source = ASTSource(
        fn=product_kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=aligned,
    )
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    made = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert made.metadata.shared <= 227 * 1024, config
    assert "cp.async" in made.asm["ptx"], config
"""


@pytest.fixture
def foreign_table(tmp_path: Path, make_table: Callable[..., Table]) -> Path:
    """A table of another device and without rows: nothing is built then."""
    path = tmp_path / "foreign.json"
    write(path, make_table({}))
    return path


def run(
    code: str, *arguments: str, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    caches = {
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **caches, **variables}
    return run_forked("-c", code, *arguments, env=environment, cwd=folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """What the command put into --out for a small product, and what it printed."""
    folder = tmp_path_factory.mktemp("bench-mm")
    words = ("--shapes", "64x32x48", "--dtype", "f32", "--rounds", "2")
    done = run(COMMAND, *words, "--device", "cpu", "--out", "made", folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "made", done.stdout


def test_a_cpu_has_the_columns_that_it_can_have(made: tuple[Path, str]) -> None:
    """Library, C++ template and table are timed and right; Triton's columns say why not."""
    found = json.loads((made[0] / "bench-mm.json").read_text())
    assert [one["shape"] for one in found["shapes"]] == [{"m": 64, "k": 32, "n": 48}]
    for one in found["shapes"]:
        assert set(one["columns"]) == {"torch", "inductor-aten", "inductor-cpp", "table"}
        assert one["table_hits"] == 1
        assert all(column["relative_l2_error"] < 1e-6 for column in one["columns"].values())
        assert all(len(column["total_rounds_us"]) == 2 for column in one["columns"].values())
        assert (one["dropped"]["triton"], one["dropped"]["inductor-triton"]) == (NO_TRITON,) * 2
    assert (found["launch"], found["l2"]) == ("eager", "warm")
    assert len(found["table"]) == 64
    assert found["peaks"]["tflops"]["f32"] > 0
    assert found["provenance"]["torch"] is not None
    assert f"no triton: {NO_TRITON}" in made[1].splitlines()


def test_the_parts_of_the_host_time_are_measured(made: tuple[Path, str]) -> None:
    """Guards are checked and the kernel is run, both within the total; the C++ one allocates."""
    found = json.loads((made[0] / "bench-mm.json").read_text())
    for one in found["shapes"]:
        for name in ("inductor-aten", "inductor-cpp", "table"):
            split = one["columns"][name]["host_us"]
            assert split["guards"] > 0
            assert split["launch"] > 0
        assert one["columns"]["inductor-cpp"]["host_us"]["allocation"] > 0
        assert one["columns"]["torch"]["host_us"]["guards"] is None


def test_charts_stand_beside_the_document(made: tuple[Path, str]) -> None:
    """--out has both charts, each as PNG and as SVG."""
    found = {path.name for path in made[0].iterdir() if path.stat().st_size}
    charts = {f"bench-mm-{name}.{kind}" for name in ("time", "tflops") for kind in ("png", "svg")}
    assert found == {"bench-mm.json", "bench-mm-table.json", *charts}


def test_a_column_that_is_wrong_or_fails_is_dropped_with_its_reason(
    tmp_path: Path, foreign_table: Path
) -> None:
    """A wrong product, an unwritten one, an error and a foreign table cost one column each."""
    done = run(SPOILED, str(foreign_table), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    dropped = json.loads(done.stdout)
    assert "its output is wrong" in dropped["torch"]
    assert "its output is unwritten" in dropped["triton"]
    assert dropped["inductor-aten"] == "ValueError: spoiled"
    assert dropped["inductor-triton"] == NO_TRITON
    assert "the table: tuned on NVIDIA H200" in dropped["table"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("shapes", "16x32"), ("dtype", "i8"), ("rounds", 0), ("l2", "tepid"), ("device", "tpu")],
)
def test_what_cannot_be_used_is_refused(name: str, value: Any) -> None:
    """Each setting that cannot be used is a WarmupError that names it; nothing is timed."""
    from warmup.bench.matmul.run import bench_mm

    said: list[str] = []
    with pytest.raises(SettingsError, match=rf"^--{name}\b"):
        bench_mm(**{"device": "cpu", "say": said.append, name: value})
    assert said == []


def test_the_triton_kernel_is_right_at_ragged_sizes(tmp_path: Path) -> None:
    """Interpreted on the CPU, the kernel agrees with float64 where no size fits the blocks."""
    pytest.importorskip("triton")
    pytest.importorskip("numpy")
    done = run(INTERPRETED, folder=tmp_path, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_config_of_the_triton_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    """For a Hopper GPU each config fits into shared memory and loads ahead of its use."""
    pytest.importorskip("triton")
    done = run(COMPILED, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
