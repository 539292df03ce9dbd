"""Operators of torch's own tests, and models, under any table: inductor measures nothing.

Benchmarks are counted by warmup and, apart from it, at inductor's benchmarkers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest")

PROGRAM = str(Path(__file__).resolve().parents[1] / "programs/serve_operators.py")
UNCOVERED = {
    "int8": "select:_weight_int8pack_mm",
    "int4": "select:_weight_int4pack_mm_for_cpu",
    "qlinear": "select:qlinear_unary",
    "custom_op": "select:warmup_tests::double_mm_autotuned",
}
# From torch 2.14 on some CPUs have one kernel for "int4"; 2.14 alone does not compile "embedding".
CHOSEN = {*UNCOVERED} - ({"int4"} if torch.__version__ >= "2.14" else set())
BROKEN = {"nn.functional.embedding"} if torch.__version__.startswith("2.14") else set()
PRODUCTS = (
    *("mm", "addmm", "bmm", "baddbmm", "matmul", "nn.functional.linear", "tensordot", "einsum"),
    *("nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv3d"),
    *("nn.functional.conv_transpose2d", "nn.functional.scaled_dot_product_attention"),
)
OTHERS = ("addmv", "sum", "softmax", "cumsum", "sort", "nn.functional.gelu")

Serve = Callable[..., dict[str, Any]]


@pytest.fixture
def serve(run_program: Callable[..., Any], tmp_path: Path) -> Serve:
    """``serve(operators=[...], mode=..., uncovered=...)``: what came of each operator."""
    count = itertools.count()

    def serve(**asked: Any) -> dict[str, Any]:
        folder = tmp_path / str(next(count))  # graphs of other rows would be loaded from caches
        folder.mkdir()
        results: dict[str, Any] = run_program(folder, PROGRAM, json.dumps(asked))
        return results

    return serve


def check(results: dict[str, Any]) -> None:
    """Check that nothing was measured, and that every output is eager's."""
    for name, found in results.items():
        assert (found["benchmarks"], found["counted"]) == (0, {}), name
        assert str(found["problem"])[:5] in {"None", "eager"} or name in BROKEN, (name, found)


def test_no_operator_is_measured(serve: Serve) -> None:
    """Products, convolutions and others; what no row kind decides is counted, once each."""
    names = [*UNCOVERED, "int_mm", *PRODUCTS, *OTHERS]
    results = serve(operators=names, uncovered="library")
    check(results)
    assert [name for name in names if results[name]["problem"]] == []
    uncovered = {name: found["uncovered"] for name, found in results.items() if found["uncovered"]}
    assert uncovered == {name: [UNCOVERED[name]] for name in {*CHOSEN, *uncovered}}
    assert results["mm"]["misses"][0].startswith("packed_linear m=5 n=5 k=10 f32")


def test_measuring_is_chosen_by_its_word(serve: Serve) -> None:
    for name, found in serve(operators=list(UNCOVERED), uncovered="measure").items():
        assert (found["benchmarks"] > 0) == (name in CHOSEN or found["uncovered"] != []), name
        assert set(found["counted"]) == set(found["uncovered"]), name
        # Torch 2.13 may choose a kernel of AMX for "int4", which is wrong without warmup too.
        assert name == "int4" or found["problem"] is None, (name, found)


def test_a_forbidden_decision_fails_before_it_is_measured(serve: Serve) -> None:
    (found,) = serve(operators=["int8"], uncovered="forbid").values()
    assert found["benchmarks"] == 0
    assert f"no row covers the site {UNCOVERED['int8']}" in found["problem"]


def test_the_kernels_are_those_of_default_mode(serve: Serve) -> None:
    names = [name for name in UNCOVERED if name != "custom_op"]  # default mode measures it
    plain, found = (serve(operators=names, uncovered=word) for word in (None, "library"))
    for name in names:
        assert found[name]["kernels"] == plain[name]["kernels"] != [], name


def test_a_hook_that_raises_measures_nothing_either(serve: Serve) -> None:
    """Default mode's choice is compiled, and the fault is a miss of the first hook that asks."""
    results = serve(operators=["int8", "mm", "bmm"], uncovered="library", faulty=True)
    check(results)
    for name, found in results.items():
        assert "RuntimeError: planted" in str(found["misses"]), (name, found["misses"])


@pytest.mark.nightly
def test_no_table_lets_anything_be_measured(serve: Serve) -> None:
    """Rows of another model, and rows for each question whose winners inductor does not offer."""
    names = ["mm", "bmm", "nn.functional.linear", "nn.functional.conv2d", "int8", "zoo:bert"]
    tables = ("none", "of another model", "wrong libraries", "wrong blocks", "wrong templates")
    for rows in tables:
        results = serve(operators=names, uncovered="library", rows=rows)
        check(results)
        for name in ("mm", "nn.functional.linear", "zoo:bert"):
            misses = results[name]["misses"]
            assert misses, (rows, name)
            assert not [key for key in misses if key.startswith("hook ")], (rows, misses)


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "every"), [("default", 9), ("max-autotune", 29)])
def test_no_other_operator_is_measured(serve: Serve, mode: str, every: int) -> None:
    """Some of all operators that torch tests, whatever mode the caller keeps."""
    results = serve(every=every, mode=mode, uncovered="library")
    check(results)
    assert sum(found["problem"] is None for found in results.values()) > 0.8 * len(results)
