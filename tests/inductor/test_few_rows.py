"""Templates for few rows: lowered and compiled for a stated H100, and interpreted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.long

pytest.importorskip("triton")

Ask = Callable[..., dict[str, Any]]
LINEAR = {"op": "mm", "n": 6144, "k": 4096, "linear": True}
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


@pytest.fixture(scope="module")
def ask(
    conversation: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ask]:
    """``ask(LINEAR, m=16)``: what the default search adds for the problem."""
    with conversation("cuda_search.py", tmp_path_factory.mktemp("search")) as search:
        yield lambda problem, **case: search(**{"search": "default", **problem, **case})


@pytest.fixture(scope="module")
def interpret(
    conversation: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ask]:
    """``interpret(winner="dots", m=1, ...)``: what came of running the kernel of a row."""
    folder = tmp_path_factory.mktemp("interpreter")
    with conversation("interpret_few_rows.py", folder, is_forked=False) as run:
        yield lambda **case: run(**{"op": "mm", **case})


@pytest.mark.parametrize(
    ("rows", "candidates"),
    [(1, 10), (2, 11), (3, 10), (5, 7), (32, 6), (64, 4), ([2, 4], 10), ([2, 40], 4)],
)
def test_few_rows_have_templates_of_their_own(ask: Ask, rows: Any, candidates: int) -> None:
    """Seven tiles of the swapped product, and three or four of sums up to four rows."""
    assert ask(LINEAR, m=rows)["added"]["few_rows"] == candidates


@pytest.mark.parametrize(
    "other",
    [
        {"m": 65},
        {"m": [2, 128]},
        {"linear": False},
        {"dtype": "float32"},
        {"op": "bmm", "linear": False},
    ],
)
def test_other_problems_have_none(ask: Ask, other: dict[str, Any]) -> None:
    """More rows, weights that lie along N, 32 bits, batches: the templates are not for them."""
    assert "few_rows" not in ask({**LINEAR, "m": 16, **other})["added"]


@pytest.mark.parametrize(("rows", "candidates"), [(1, 10), (16, 7)])
@pytest.mark.parametrize("scales", ["row", "tensor"])
def test_tiles_of_8_bits_are_twice_as_deep_and_compile(
    ask: Ask, rows: int, candidates: int, scales: str
) -> None:
    """For the products of `torch._scaled_mm`; each tile fits into an H100's shared memory."""
    tiles = ask({**LINEAR, "op": "scaled_mm"}, m=rows, scales=scales, compile_each="few_rows")
    assert len(tiles["each"]) == candidates
    assert {tile["BLOCK_K"] for tile in tiles["each"]} <= {256, 512, 2048, 4096}
    assert {tile["taken"] <= 227 * 1024 for tile in tiles["each"]} == {True}


@pytest.mark.parametrize(("rows", "candidates"), [(1, 10), (2, 11), (4, 10), (16, 7), (64, 4)])
def test_every_tile_compiles_with_the_shared_memory_that_was_foretold(
    ask: Ask, rows: int, candidates: int
) -> None:
    """Triton takes for each tile of the swapped product what the limits were checked with."""
    tiles = ask(LINEAR, m=rows, compile_each="few_rows")["each"]
    assert len(tiles) == candidates
    swapped = [tile for tile in tiles if tile["uid"] == "triton::warmup_mm_swapped"]
    assert {0 <= tile["taken"] - tile["foretold"] <= 64 for tile in swapped} == {True}


@pytest.mark.parametrize("op", ["mm", "addmm", "scaled_mm"])
@pytest.mark.parametrize("rows", [1, 16, [2, 40]])
def test_a_row_is_served(ask: Ask, op: str, rows: Any) -> None:
    found = ask({**LINEAR, "op": op}, m=rows, serve="few_rows")
    assert [event["name"] for event in found["served"]["events"]] == ["lookup.hit"]
    assert found["served"]["generated"] == [found["last"]["few_rows"]["uid"].partition("::")[2]]
    assert not [guard for guard in found["served"]["guards"] if guard.startswith("Eq(")]


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
def test_a_template_computes_the_product(interpret: Ask, problem: dict[str, Any]) -> None:
    """For any sizes, strides of rows and scalars of an addmm; a second run writes the same bits."""
    found = interpret(**problem)
    assert (found["externs"], len(found["kernels"]), found["same"]) == ([], 1, True)
    assert found["apart"] < (1e-2 if "scalars" in problem else 1e-3)


@pytest.mark.parametrize(("winner", "m"), [("dots", 1), ("dots", 3), ("swapped", 7)])
@pytest.mark.parametrize("how", [{}, {"scales": "row"}, {"fast": True}])
def test_a_scaled_product_is_scaled_in_the_kernel(
    interpret: Ask, winner: str, m: int, how: dict[str, Any]
) -> None:
    """In fp8, by one scale for each operand or by one for each row and column."""
    found = interpret(winner=winner, op="scaled_mm", m=m, n=80, k=320, **how)
    assert (found["externs"], len(found["kernels"]), found["same"]) == ([], 1, True)
    assert found["apart"] < 1e-3


@pytest.mark.parametrize(("winner", "m"), [("dots", 1), ("dots", 3), ("swapped", 7)])
def test_an_epilogue_is_in_the_kernel(interpret: Ask, winner: str, m: int) -> None:
    """The activation and a product with a vector are fused into the template."""
    found = interpret(winner=winner, op="addmm", m=m, n=130, k=300, epilogue=True)
    assert (found["externs"], len(found["kernels"])) == ([], 1)
    assert found["apart"] < 1e-2  # it rounds to bf16 in between, as eager does


@pytest.mark.parametrize(
    ("winner", "m", "rows"),
    [
        *(("swapped", [2, 40], rows) for rows in (2, 17, 40)),
        *(("dots", [2, 4], rows) for rows in (2, 3, 4)),
    ],
)
def test_a_kernel_of_a_range_takes_every_number_of_rows(
    interpret: Ask, winner: str, m: list[int], rows: int
) -> None:
    """One kernel is generated for the range, and computes each call's rows."""
    assert interpret(winner=winner, m=m, rows=rows, n=70, k=256)["apart"] < 1e-3


@pytest.mark.parametrize(
    ("winner", "m"), [("dots", 1), ("dots", 3), ("swapped", 9), ("swapped", 16)]
)
def test_nan_and_infinities_reach_their_values_alone(interpret: Ask, winner: str, m: int) -> None:
    """A row or a column that is loaded beyond the end is not stored."""
    found = interpret(winner=winner, m=m, n=70, k=255, poison=True)
    assert found["finite"]
    assert found["apart"] < 1e-3
