"""A padded model under torch.compile, in a process of its own with empty caches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def report(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> Any:
    program = ROOT / "tests" / "programs" / "compile_padded.py"
    return json.loads(run_once("compile-padded", str(program), **variables)[1])


def test_compiled_agrees_with_eager_in_one_graph(report: Any) -> None:
    """A SwiGLU, a tied head and a patch embedding give what they gave unpadded and uncompiled."""
    for frozen in ("plain", "frozen", "in part"):
        assert (report[frozen]["padded"], report[frozen]["graphs"]) == (5, 1), frozen
        assert report[frozen]["error"] <= 1e-5, frozen


def test_padding_an_activation_is_fused_into_its_kernel(report: Any) -> None:
    """The kernel that computes tanh writes its result padded; no other kernel pads."""
    pads = [name for name in report["plain"]["kernels"] if "constant_pad_nd" in name]
    assert len(pads) == 1
    assert "tanh" in pads[0]


def test_matmuls_have_the_padded_sizes(report: Any) -> None:
    assert report["plain"]["weights"] == [[32, 32], [48, 32], [48, 32], [32, 48], [104, 32]]
    # Its matmul is that of a model that is not prepared; the others stay padded.
    assert report["in part"]["weights"] == [[32, 32], [48, 32], [48, 32], [32, 48], [101, 32]]
    # Padded weights are no inputs of the graph, so kernels may pack them ahead of time.
    assert report["frozen"]["weights"] == []
