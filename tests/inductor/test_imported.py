"""The candidates of `warmup import` for GEMM selections, for a stated H100."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

ASKED = {"op": "addmm", "m": 1376, "n": 768, "k": 3072}
CONFIG = {
    "BLOCK_M": 64,
    "BLOCK_N": 64,
    "BLOCK_K": 64,
    "GROUP_M": 8,
    "num_stages": 3,
    "num_warps": 8,
}
Lower = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def lower(
    conversation: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lower]:
    """``lower(search="imported")``: lower a case in the program, and return its output."""
    with conversation("cuda_imported.py", tmp_path_factory.mktemp("imported")) as ask:
        yield lambda **case: ask(**ASKED, imported=CONFIG, **case)


def test_an_import_generates_the_given_config_alone(lower: Lower) -> None:
    """The search ``imported`` tries the config and the library's kernels, and leaves out others."""
    found = lower(search="imported")
    assert [uid for uid in found["candidates"] if not uid.startswith("aten::")] == ["triton::mm"]
    assert "triton::mm 64x64x64 w8 s3" in found["configs"]
    assert found["generated"] == ["mm"]
    assert (found["search"], found["left_out"] > 40) == ("imported", True)
