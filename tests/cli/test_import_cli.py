"""`warmup import`: problems, configs that stay unverified, and measuring them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.diagnostics.misses import read_misses

Done = subprocess.CompletedProcess[str]
# What torch 2.13 wrote on a CPU, cut.
LOG = """\
AUTOTUNE linear_unary(16x96, 32x96)
strides: [96, 1], [1, 0]
dtypes: torch.bfloat16, torch.bfloat16
  _linear_pointwise 0.0149 ms 100.0%\x20
  cpp_CppMicroGemmFP32Vec_5 13.5628 ms 0.1%\x20
SingleProcess AUTOTUNE benchmarking takes 4.8 seconds and 0.0 seconds precompiling for 2 choices
AUTOTUNE convolution(1x8x9x9, 4x8x3x3)
strides: [648, 81, 9, 1], [72, 9, 3, 1]
dtypes: torch.float32, torch.float32
  convolution 0.0149 ms 100.0%\x20
SingleProcess AUTOTUNE benchmarking takes 4.8 seconds and 0.0 seconds precompiling for 2 choices
"""
KEY = "linear_unary m=16 n=32 k=96 bf16 a=row b=packed out=bf16 | epilogue=none"


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A log with a linear on a CPU and a convolution."""
    path = tmp_path / "server.log"
    path.write_text(LOG, encoding="utf-8")
    return str(path)


def test_problems_are_written_for_a_build(
    log: str, tmp_path: Path, run_main: Callable[..., Done]
) -> None:
    """The document is one that `build --problems` reads; what was not mapped is on stdout."""
    problems = tmp_path / "problems.json"
    done = run_main("import", log, "--problems-out", str(problems))
    assert done.returncode == 0, done.stderr
    (problem,) = read_misses(problems)
    assert (problem.key, problem.reason) == (KEY, "imported")
    text = " ".join(done.stdout.split())
    assert text.startswith("2 entries read: 1 problem, 1 with a complete config")
    assert "not mapped: server.log:7: convolution(1x8x9x9, 4x8x3x3): the entry has neither" in text
    assert "assumed, since these files do not say it: no epilogue" in text


def test_nothing_to_import_is_found(tmp_path: Path, run_main: Callable[..., Done]) -> None:
    """A log of convolutions alone ends with code 1, and the document says why."""
    path = tmp_path / "server.log"
    path.write_text(LOG[LOG.index("AUTOTUNE conv") :], encoding="utf-8")
    done = run_main("import", str(path), "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["problems"], document["unmapped"][0]["origin"]) == ([], "server.log:1")


def test_configs_beyond_those_that_a_table_holds_are_counted(
    tmp_path: Path, run_main: Callable[..., Done]
) -> None:
    """Of 18 configs of one product 16 stay in the table, and the report says how many do not."""
    blocks = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8}
    template = {"template_id": "triton::mm", "template_hash": "0123456789abcdef", **blocks}
    nodes = "((torch.bfloat16, [512, 640], [640, 1]), (torch.bfloat16, [640, 768], [1, 640]))"
    document = {
        f"{nodes}+mm": [
            {**template, "num_stages": stages, "num_warps": warps}
            for stages in range(1, 10)
            for warps in (4, 8)
        ]
    }
    (tmp_path / "tuned.json").write_text(json.dumps(document), encoding="utf-8")
    words = ("import", str(tmp_path / "tuned.json"), "--out", "t.json", "--device", "cpu")
    done = run_main(*words)
    assert done.returncode == 0, done.stderr
    assert "2 configs of 1 key left out: a table holds the 16 fastest" in done.stdout
    assert list(json.loads(run_main(*words, "--json").stdout)["left_out"].values()) == [2]


def test_verifying_needs_a_table(log: str, run_main: Callable[..., Done]) -> None:
    """--verify without --out is an error with its advice."""
    done = run_main("import", log, "--verify")
    assert done.returncode != 0
    assert "--verify has no table; name it by --out" in " ".join(done.stderr.split())
