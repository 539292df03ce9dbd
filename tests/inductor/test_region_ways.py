"""What is compiled for a region in each way, for a stated H100 (tests/programs/cuda_region.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

pytestmark = pytest.mark.long

Ways = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def compiled(run_program: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Ways:
    ways: Ways = run_program(tmp_path_factory.mktemp("ways"), "tests/programs/cuda_region.py")
    return ways


def test_kernels_are_counted_in_the_code(compiled: Ways) -> None:
    """An activation saves a kernel; a residual only moves from the norm's kernel to the GEMM's."""
    for case, counts in (("gelu", [2, 1, 2]), ("residual, then a norm", [2, 2, 2])):
        assert [way["count"] for way in compiled[case]] == counts, (case, counts)
        assert all(way["is_as_decided"] for way in compiled[case]), (case, counts)


def test_spills_and_registers_are_those_of_the_template(compiled: Ways) -> None:
    """They are read from the loaded kernel; a library call has none."""
    found = [(way["spills"], way["registers"]) for way in compiled["gelu"]]
    assert found == [(None, None), (0, 32), (0, 32)]


def test_a_way_that_undoes_the_decision_of_another_row_is_left_out(compiled: Ways) -> None:
    """The first GEMM of a gated MLP has the gate; the second is compiled without it only."""
    _, fused, apart = compiled["gated"]
    assert (fused["is_as_decided"], apart["is_as_decided"]) == (False, True)
    assert "inductor does not fuse as decided for mm m=1024" in fused["error"]
    assert apart["count"] == 2


def test_what_is_compiled_ahead_is_compiled_once(compiled: Ways) -> None:
    at_once, ahead = ([{**way} for way in compiled[case]] for case in ("gelu", "gelu, ahead"))
    assert [way.pop("lowered") for way in at_once] == [1, 2, 3]
    assert [way.pop("lowered") for way in ahead] == [3, 3, 3]
    assert ahead == at_once
