"""A config of an autotune log, measured on this machine before it is a row."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from warmup.core.method import Search
from warmup.table.store import read

Done = subprocess.CompletedProcess[str]
# What torch 2.13 wrote on a CPU, cut.
LOG = """\
AUTOTUNE linear_unary(16x96, 32x96)
strides: [96, 1], [1, 0]
dtypes: torch.bfloat16, torch.bfloat16
  _linear_pointwise 0.0149 ms 100.0%\x20
  cpp_CppMicroGemmFP32Vec_5 13.5628 ms 0.1%\x20
SingleProcess AUTOTUNE benchmarking takes 4.8 seconds and 0.0 seconds precompiling for 2 choices
"""
KEY = "linear_unary m=16 n=32 k=96 bf16 a=row b=packed out=bf16 | epilogue=none"


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN has no bf16 on this CPU, and inductor packs no weight in it",
)
def test_a_config_is_measured_before_it_is_a_row(
    tmp_path: Path, run_python: Callable[..., Done]
) -> None:
    """--verify measures the config and nothing else, and makes it a row."""
    (tmp_path / "server.log").write_text(LOG, encoding="utf-8")
    words = ("-m", "warmup", "import", "server.log", "--out", "t.json", "--device", "cpu")
    done = run_python(*words, "--verify", cwd=tmp_path)
    table = read(tmp_path / "t.json")
    evidence = table.rows[KEY].evidence
    assert (dict(table.imported), str(table.rows[KEY].winner)) == ({}, "aten::_linear_pointwise")
    assert (evidence.search, evidence.tried) == (Search.IMPORTED, 1)
    assert "verified: imported configs of 1 key confirmed" in " ".join(done.stdout.split())
