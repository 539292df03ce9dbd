"""Operations of a trace's operators, against torch's own counter and by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from warmup.bench.attribution import work_of_operator
from warmup.bench.profile import Profile, profile_trace
from warmup.bench.trace import HostOperator, read_trace

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, Mapping[str, int]]:
    """A profiled run of operators by name, and what torch's counter says of each."""
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    program = ROOT / "tests" / "programs" / "counted_operators.py"
    done = subprocess.run(
        [sys.executable, str(program), str(path)], capture_output=True, text=True, check=True
    )
    return profile_trace(read_trace(path), None), json.loads(done.stdout.splitlines()[-1])


def test_work_by_hand() -> None:
    """Operations and bytes are those counted by hand; the output argument is not read."""
    for name, dims, concrete, flops, moved in (
        (
            "aten::addmm",
            [[4], [8, 16], [16, 4], [], [], [8, 4]],
            ["", "", "", "1", "1", ""],
            2 * 8 * 16 * 4,
            2 * (4 + 128 + 64 + 32),
        ),
        (
            "aten::_grouped_mm",  # columns of b in groups
            [[4, 32, 16], [16, 8], [4], [], []],
            ["", "", "", "", ""],
            2 * 32 * 16 * 8,
            2 * (4 * 32 * 16 + 16 * 8 + 32 * 8),
        ),
        (
            "aten::_grouped_mm",  # the sum in groups: a result for each
            [[32, 16], [16, 8], [4], [], []],
            ["", "", "", "", ""],
            2 * 32 * 16 * 8,
            2 * (32 * 16 + 16 * 8 + 4 * 32 * 8),
        ),
        (
            "aten::_scaled_grouped_mm",  # a scale of each row, and of each column of each group
            [[32, 16], [4, 16, 8], [32], [4, 8], [4], [], [], []],
            ["", "", "", "", "", "", "", ""],
            2 * 32 * 16 * 8,
            2 * (32 * 16 + 4 * 16 * 8 + 32 + 4 * 8 + 32 * 8),
        ),
        (
            "aten::cudnn_convolution",
            [[1, 2, 8, 8], [6, 2, 3, 3]],
            ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"],
            2 * 6 * 64 * 2 * 9,
            2 * (128 + 108 + 6 * 64),
        ),
        (
            "aten::_flash_attention_forward",
            [[1, 128, 4, 64], [1, 256, 4, 64], [1, 256, 4, 64]],
            ["", "", ""],
            2 * 4 * 128 * 256 * (64 + 64),
            2 * (4 * 64 * (128 + 256 + 256) + 4 * 128 * 64),
        ),
    ):
        types = ["c10::BFloat16" if sizes else "Scalar" for sizes in dims]
        operator = HostOperator(
            name, {"Input Dims": dims, "Input type": types, "Concrete Inputs": concrete}
        )
        work = work_of_operator(operator)
        assert work is not None, name
        assert (work.dtype, work.flops, work.moved) == ("bf16", flops, moved), name
    assert work_of_operator(HostOperator("aten::mm", {})) is None
