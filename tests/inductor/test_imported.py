"""What imported configs make of GEMM selections, for a stated H100.

Each case is one line to tests/programs/cuda_imported.py: real heuristics, lowering and codegen,
and an imported config.
"""

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
    """``lower(on_miss="unverified")``: lower a case in the program, and return its output."""
    with conversation("cuda_imported.py", tmp_path_factory.mktemp("imported")) as ask:
        yield lambda **case: ask(**ASKED, imported=CONFIG, **case)


def test_an_unverified_config_is_not_served(lower: Lower) -> None:
    """The library's kernel is compiled, and the miss says that an unverified config is there."""
    served = lower(on_miss="fallback")
    (event,) = served["events"]
    assert (event["name"], event["reason"]) == ("lookup.missed", "unverified")
    assert (served["generated"], served["library"]) == ([], 1)


def test_the_user_may_have_it_served_and_it_stays_a_miss(lower: Lower) -> None:
    """With on_miss="unverified" the config's template is the one kernel, reported as a miss."""
    served = lower(on_miss="unverified")
    (event,) = served["events"]
    assert (event["name"], event["reason"]) == ("lookup.missed", "unverified")
    assert "BLOCK_K=64,BLOCK_M=64,BLOCK_N=64" in event["choice"]
    assert (served["generated"], served["library"]) == (["mm"], 0)


def test_verifying_generates_the_imported_config_alone(lower: Lower) -> None:
    """The search ``imported`` tries the config and the library's kernels, and leaves out others."""
    found = lower(search="imported")
    templates = [uid for uid in found["candidates"] if not uid.startswith("aten::")]
    assert templates == ["triton::mm"]
    assert "triton::mm 64x64x64 w8 s3" in found["configs"]
    assert found["generated"] == ["mm"]
    assert (found["search"], found["left_out"] > 40) == ("imported", True)
