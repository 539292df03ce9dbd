"""Templates for few rows: interpreted, as generated for a stated H100."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.long

pytest.importorskip("triton")

PROGRAM = "interpret_few_rows.py"
IS_FORKED = False
Ask = Callable[..., dict[str, Any]]
SCALED = {"op": "addmm", "n": 70, "k": 300}


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """A product of up to 64 rows with sizes of any divisors, and one of the templates for it."""
    op = draw(st.sampled_from(["mm", "addmm"]))
    winner = draw(st.sampled_from(["dots", "swapped"]))
    found = {
        "winner": winner,
        "op": op,
        "m": draw(st.integers(1, 4 if winner == "dots" else 64)),
        # Of a single column inductor writes the bias out in a kernel of its own, and with K = 1 it
        # has no product.
        "n": draw(st.integers(1 if op == "mm" else 2, 200)),
        "k": draw(st.integers(2, 3000 if winner == "dots" else 600)),
        "gap": draw(st.integers(0, 20)),
    }
    if op == "addmm" and draw(st.booleans()):
        scalars = st.sampled_from([1.0, 2.0, 0.5])
        found["scalars"] = {"alpha": draw(scalars), "beta": draw(st.sampled_from([1.0, 0.5, 0.0]))}
    return found


@settings(max_examples=24)
@example({"winner": "dots", "m": 1, "n": 64, "k": 2048})
@example({"winner": "dots", "m": 4, "n": 64, "k": 2048})
@example({"winner": "swapped", "m": 64, "n": 128, "k": 512})
@example({"winner": "swapped", "m": 16, "n": 16, "k": 256})
@example({"winner": "dots", "op": "addmm", "m": 1, "n": 64, "k": 2048})
@example({"winner": "swapped", "op": "addmm", "m": 64, "n": 128, "k": 512})
@example(SCALED | {"winner": "dots", "m": 1, "scalars": {"alpha": 2.0, "beta": 0.5}})
@example(SCALED | {"winner": "dots", "m": 1, "scalars": {"beta": 0.0}})
@example(SCALED | {"winner": "swapped", "m": 7, "scalars": {"alpha": 2.0, "beta": 0.5}})
@example(SCALED | {"winner": "swapped", "m": 7, "scalars": {"beta": 0.0}})
@example({"winner": "dots", "m": 1, "n": 70, "k": 300, "gap": 20})
@example({"winner": "swapped", "m": 7, "n": 70, "k": 300, "gap": 20})
@given(problems())
def test_a_template_computes_the_product(ask: Ask, problem: dict[str, Any]) -> None:
    """For any sizes, strides of rows and scalars of an addmm; a second run writes the same bits."""
    found = ask(**problem)
    assert (found["externs"], len(found["kernels"]), found["same"]) == ([], 1, True)
    assert found["apart"] < (1e-2 if "scalars" in problem else 1e-3)


WAYS = (("dots", 1), ("dots", 3), ("swapped", 7))


def test_a_scaled_product_is_scaled_in_the_kernel(ask: Ask) -> None:
    """In fp8, by one scale for each operand or by one for each row and column."""
    for (winner, m), how in product(WAYS, ({}, {"scales": "row"}, {"fast": True})):
        found = ask(winner=winner, op="scaled_mm", m=m, n=80, k=320, **how)
        kernels = (found["externs"], len(found["kernels"]), found["same"])
        assert kernels == ([], 1, True), (winner, m, how)
        assert found["apart"] < 1e-3, (winner, m, how)


def test_an_epilogue_is_in_the_kernel(ask: Ask) -> None:
    """The activation and a product with a vector are fused into the template."""
    for winner, m in WAYS:
        found = ask(winner=winner, op="addmm", m=m, n=130, k=300, epilogue=True)
        assert (found["externs"], len(found["kernels"])) == ([], 1), (winner, m)
        assert found["apart"] < 1e-2, (winner, m)  # it rounds to bf16 in between, as eager does


def test_a_kernel_of_a_range_takes_every_number_of_rows(ask: Ask) -> None:
    """One kernel is generated for the range, and computes each call's rows."""
    for winner, m, calls in (("swapped", [2, 40], (2, 17, 40)), ("dots", [2, 4], (2, 3, 4))):
        for rows in calls:
            found = ask(winner=winner, m=m, rows=rows, n=70, k=256)
            assert found["apart"] < 1e-3, (winner, rows)


def test_nan_and_infinities_reach_their_values_alone(ask: Ask) -> None:
    """A row or a column that is loaded beyond the end is not stored."""
    for winner, m in (("dots", 1), ("dots", 3), ("swapped", 9), ("swapped", 16)):
        found = ask(winner=winner, m=m, n=70, k=255, poison=True)
        assert found["finite"], (winner, m)
        assert found["apart"] < 1e-3, (winner, m)
