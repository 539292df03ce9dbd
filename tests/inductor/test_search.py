"""The candidates that a search adds for a stated H100, and that a row can force each of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from sample_tables import make_key, make_row

pytest.importorskip("triton")

from warmup.core.events import Emitter
from warmup.core.trial import Tuned
from warmup.keys.gemm import GemmProblem
from warmup.keys.question import GemmQuestion, Question
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss

PROGRAM = "cuda_gemms.py"

pytestmark = pytest.mark.long

FEW = {"op": "mm", "m": 16, "n": 6144, "k": 4096}
MANY = {"op": "mm", "m": 2048, "n": 6144, "k": 4096}
LARGE_K = {"op": "mm", "m": 16, "n": 64, "k": 16384}
RANGED = {"op": "mm", "m": [2, 1024]}
LINEAR = {"op": "mm", "n": 6144, "k": 4096, "linear": True}
SCALED = {"op": "scaled_mm", "m": 64}
TILE = {"BLOCK_M": 128, "BLOCK_N": 32, "BLOCK_K": 64, "GROUP_M": 4, "num_stages": 6}
ELSEWHERE = {**TILE, "num_warps": 4, "EVEN_K": False, "ACC_TYPE": "tl.float64", "ALLOW_TF32": True}
Ask = Callable[..., dict[str, Any]]


def test_the_default_adds_persistent_tma_alone(ask: Ask) -> None:
    """Beside inductor's list; a weight that lies along N has no template for few rows."""
    assert ask(**FEW, search="default")["added"] == {"tma": 7}
    # The persistent TMA template would read a single row as a column and be wrong.
    assert "tma" not in ask(**{**FEW, "m": 1}, search="wide")["added"]


def test_a_scaled_product_has_candidates_that_scale_and_accumulate_as_the_model_asks(
    ask: Ask,
) -> None:
    """Of an exhaustive search too, no candidate is a slower one that accumulates in full."""
    for scales in ("tensor", "row"):
        found = ask(**SCALED, search="default", scales=scales, fast=True)
        last = found["last"]["tma"]
        recipe = int(scales == "row")
        assert found["added"] == {"tma": 13, "few_rows": 6}, scales
        assert last["uid"] == "triton::scaled_mm_device_tma_epilogue_scaling", scales
        assert (last["SCALE_RECIPE_A"], last["SCALE_RECIPE_B"]) == (recipe, recipe), scales
    found = ask(**SCALED, search="exhaustive", fast=True)
    fast = [choice for choice in found["every"] if "('USE_FAST_ACCUM', True)" in choice]
    assert set(found["added"]) == {"tma", "few_rows", "tiles", "exhaustive"}
    assert len(fast) == found["tried"] - 1  # less the library's kernel


def test_wide_and_exhaustive_searches_add_what_they_say(ask: Ask) -> None:
    """A wide search adds candidates of each source, and a bounded number of them."""
    found = ask(**FEW, search="wide")
    assert list(found["added"]) == ["tma", "splits", "tiles"]
    assert found["tried"] < 80
    # Besides splits and six stages, inductor's 426 are tried, less 25 that cannot launch.
    found = ask(**FEW, search="exhaustive")
    six_stages = 14
    assert found["pruned"] == {"shared_memory": 25}
    assert found["tried"] - len(found["splits"]) - six_stages == 426 - 25
    # Tiles that spill, which inductor's exhaustive list lacks, are added and counted.
    assert ask(**MANY, search="exhaustive")["spilling"] > 200
    # If the lowering offers decompose_k alone, the template's tiles are tried too.
    assert ask(**LARGE_K, search="wide")["added"] == {}
    assert ask(**LARGE_K, search="exhaustive")["added"] == {"exhaustive": 175}


def test_there_are_no_duplicates_and_no_guards(ask: Ask) -> None:
    others = ({"op": op, "m": 64} for op in ("addmm", "bmm", "mm_plus_mm", "int_mm", "scaled_mm"))
    for problem in (FEW, MANY, LARGE_K, RANGED, *others):
        found = ask(**problem, search="exhaustive", neighbours=[ELSEWHERE])
        assert len(found["every"]) == len(set(found["every"])), problem
        assert found["guards"] == [], problem


def test_a_neighbours_tile_is_adapted_to_the_problem(ask: Ask) -> None:
    """Only the tile comes from a neighbour; EVEN_K and the accumulator follow from the problem."""
    found = ask(op="mm", m=200, search="wide", neighbours=[ELSEWHERE])["last"]["neighbours"]
    assert found.items() >= {**TILE, "EVEN_K": True, "ACC_TYPE": "tl.float32"}.items()
    assert "ALLOW_TF32" not in found
    # The tile is cut to the problem.
    found = ask(**FEW, search="wide", neighbours=[ELSEWHERE])["last"]["neighbours"]
    assert (found["BLOCK_M"], found["BLOCK_N"], found["num_warps"]) == (16, 32, 2)
    # A tile of inductor's list is not tried twice.
    listed = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_stages": 3, "num_warps": 4}
    assert "neighbours" not in ask(**MANY, search="wide", neighbours=[listed])["added"]


def test_neighbours_are_the_rows_of_the_table_and_of_this_build() -> None:
    """A lookup's neighbours come from its table and from rows tuned since, nearest first."""
    fresh = Tuned(make_key(40), make_row(BLOCK_M=40), ())

    class Finished:
        def measure(self, question: Question) -> Tuned:
            del question
            return fresh

        def close(self) -> None:
            pass

    rows = {make_key(16): make_row(BLOCK_M=16)}
    lookup = Lookup(rows, OnMiss.FALLBACK, Emitter([]), tuner=Finished())
    lookup.measure(GemmQuestion(GemmProblem.of_key(fresh.key), "cuda", ()))
    found = lookup.neighbours(GemmProblem.of_key(make_key(32)))
    assert [dict(winner.kwargs)["BLOCK_M"] for winner in found] == [40, 16]


def test_a_row_of_a_search_is_served(ask: Ask) -> None:
    """A row with the last candidate of a source hits, and only its template is generated."""
    few_rows = [
        ({**LINEAR, "op": op, "m": rows}, "default", "few_rows")
        for op, rows in product(("mm", "addmm", "scaled_mm"), (1, 16, [2, 40]))
    ]
    for problem, word, source in (
        (FEW, "wide", "splits"),
        (FEW, "wide", "tiles"),
        (MANY, "exhaustive", "exhaustive"),
        (LARGE_K, "exhaustive", "exhaustive"),
        ({"op": "mm", "m": 16, "n": 771, "k": 1023}, "exhaustive", "splits"),
        (RANGED, "exhaustive", "exhaustive"),
        ({"op": "mm", "m": 200}, "wide", "neighbours"),
        ({"op": "addmm", "m": 16}, "wide", "tiles"),
        ({"op": "bmm", "m": 64}, "exhaustive", "exhaustive"),
        ({"op": "baddbmm", "m": 64}, "wide", "tiles"),
        (SCALED, "exhaustive", "exhaustive"),
        ({**SCALED, "scales": "row", "fast": True}, "default", "tma"),
        ({"op": "scaled_mm", "m": [2, 1024], "scales": "row"}, "wide", "tiles"),
        ({"op": "int_mm", "m": 64}, "wide", "tiles"),
        *few_rows,
    ):
        found = ask(**problem, search=word, serve=source, neighbours=[ELSEWHERE])
        served, last = found["served"], found["last"][source]
        case = (problem, word, source)
        template = [] if source == "splits" else [last["uid"].partition("::")[2]]
        tile = {name: last[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K") if name in last}
        assert [event["name"] for event in served["events"]] == ["lookup.hit"], case
        assert (served["tile"], served["generated"]) == (tile, template), case
        assert not [guard for guard in served["guards"] if guard.startswith("Eq(")], case


def test_few_rows_have_templates_of_their_own(ask: Ask) -> None:
    """Other products, and more rows, have none."""
    for other in (
        {"m": 65},
        {"m": [2, 128]},
        {"linear": False},
        {"dtype": "float32"},
        {"op": "bmm", "linear": False},
    ):
        added = ask(**{**LINEAR, "m": 16, **other}, search="default")["added"]
        assert "few_rows" not in added, other


def test_tiles_compile_with_the_shared_memory_that_was_foretold(ask: Ask) -> None:
    """Triton takes the bytes that the limits were checked with, plus barriers."""
    for op in ("mm", "addmm", "bmm"):
        (tile,) = ask(op=op, m=16, search="wide", compile="tiles", most=1)["compiled"]
        assert 0 <= tile["taken"] - tile["foretold"] <= 64, op
    for rows, candidates in ((1, 10), (2, 11), (4, 10), (16, 7), (32, 6), (64, 4)):
        tiles = ask(**LINEAR, m=rows, search="default", compile="few_rows")["compiled"]
        assert len(tiles) == candidates, rows
        swapped = [tile for tile in tiles if tile["uid"] == "triton::warmup_mm_swapped"]
        assert {0 <= tile["taken"] - tile["foretold"] <= 64 for tile in swapped} == {True}, rows


def test_a_question_has_the_librarys_kernel_and_the_record_of_its_search(ask: Ask) -> None:
    """The control can be called in another process, `torch._scaled_mm` with its dtype too."""
    for op in ("mm", "addmm", "bmm", "int_mm", "scaled_mm"):
        asked = ask(op=op, m=64, search="wide", asked=True, scales="row", fast=True)
        assert (asked["word"], asked["has_library"]) == ("wide", True), op
        assert asked["offered"] == asked["tried"], op
        assert asked["added"]["tiles"] > 0, op


def test_an_operand_from_the_graph_has_its_final_layout(ask: Ask) -> None:
    """Inductor pads its rows from 3420 to 3456; the key and the memory follow."""
    asked = ask(op="mm", m=64, n=256, k=3420, produced=True, search="default", asked=True)
    assert (" a=row/3456 " in asked["key"], asked["strides"][-2]) == (True, [3456, 1])


def test_a_range_has_questions_at_smaller_sizes(ask: Ask) -> None:
    """At its lower end and below the hint: the same kernels, and a grid that follows the size."""
    fixed = ask(**FEW, search="default", asked=True)
    assert (fixed["size"], fixed["smaller_sizes"]) == (None, [])
    found = ask(**{**MANY, "m": [256, 2048]}, search="default", asked=True)
    assert (found["size"], found["guards"]) == (1152, [])
    assert [one["size"] for one in found["smaller_sizes"]] == [256, 704]
    for one in found["smaller_sizes"]:
        assert one["out"] == [one["size"], 6144]
        assert (one["missing"], one["changed"]) == (0, 0), one["size"]
        assert one["grids"], one["size"]
        for kwargs, rows, (blocks, *others) in one["grids"]:
            tiles = -(-one["size"] // kwargs["BLOCK_M"]) * -(-6144 // kwargs["BLOCK_N"])
            assert rows == one["size"]
            assert blocks == min(tiles, kwargs.get("NUM_SMS", tiles))
            assert others == [1, 1]
