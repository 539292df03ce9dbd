"""Which rows are near a key: neighbours for a search, and the nearest row for a miss."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_tables import make_key, make_row

from warmup.core.errors import ProblemError
from warmup.core.rows import Family, Winner
from warmup.keys.kind import Kind
from warmup.keys.registry import nearest_row, neighbours_of


def blocks(winners: tuple[Winner, ...]) -> list[object]:
    return [dict(winner.kwargs)["BLOCK_M"] for winner in winners]


def test_the_nearest_comes_first_by_ratio() -> None:
    """To m=32, 40 is nearest; 16 and 64 are equally far, and 4096 the farthest."""
    rows = {make_key(m): make_row(BLOCK_M=m) for m in (4096, 64, 16, 40)}
    assert blocks(neighbours_of(make_key(32), rows)) == [40, 16, 64, 4096]
    # The order of rows does not matter.
    rows = {make_key(m): make_row(BLOCK_M=m) for m in (16, 64, 256)}
    backwards = dict(reversed(rows.items()))
    assert neighbours_of(make_key(32), rows) == neighbours_of(make_key(32), backwards)
    # The number of neighbours is limited.
    rows = {make_key(m): make_row(BLOCK_M=m) for m in (16, 64, 256)}
    assert blocks(neighbours_of(make_key(200), rows, 1)) == [256]
    # Two rows with the same winner count as one neighbour, so that a third row is taken.
    rows = {make_key(m): make_row(BLOCK_M=64 if m < 100 else m) for m in (16, 32, 256)}
    assert blocks(neighbours_of(make_key(24), rows, 2)) == [64, 256]


def test_other_gemms_are_no_neighbours() -> None:
    """A row of another op, dtype or operand order is no neighbour, whatever its sizes."""
    near = make_key(64)
    others = (
        near.replace("addmm", "mm").replace(" bias=1d", ""),
        near.replace("bf16", "f16"),
        near.replace("b=col", "b=row"),
    )
    assert neighbours_of(make_key(32), {key: make_row() for key in others}) == ()


def test_library_winners_and_other_kinds_are_no_neighbours(toy_kind: Kind) -> None:
    """A row with another leading dimension and another epilogue is a neighbour."""
    row = make_key(64, epilogue="relu").replace("a=row", "a=row/4096")
    assert len(neighbours_of(make_key(32), {row: make_row()})) == 1
    # Library winners are no neighbours.
    row = replace(make_row(), winner=Winner(Family.EXTERN, "aten::addmm"))
    assert neighbours_of(make_key(32), {make_key(64): row}) == ()
    # A row of another kind is left out, even if its winner is a template too.
    rows = {"toy cat m=1 n=4 via=sum f32 tag=7": make_row(), make_key(64): make_row(BLOCK_M=64)}
    assert blocks(neighbours_of(make_key(32), rows)) == [64]


def test_the_nearest_row_has_the_closest_sizes_and_the_first_words(toy_kind: Kind) -> None:
    rows = [f"toy cat m=1 n={n} via=sum f32 tag=7" for n in (1, 70)]
    asked = "toy cat m=1 n=64 via=sum f32 tag=7"
    assert nearest_row(asked, rows) == (rows[1], ("n: row 70, here 64",))
    # The nearest row has the same first words.
    rows = ["toy split m=1 n=64 via=sum f32 tag=7"]
    assert nearest_row("toy cat m=1 n=64 via=sum f32 tag=7", rows) == (None, ())


def test_without_a_row_of_the_op_one_of_another_precision_is_near() -> None:
    """Of the same sizes alone: inductor asks for another op where the precision differs."""
    asked = "linear_unary m=8 n=48 k=32 f32 a=row b=packed bias=1d out=f32 fp32=bf16"
    built = "packed_linear m=8 n=48 k=32 f32 a=row b=packed out=f32 fp32=ieee"
    asked, built = (f"{key} | epilogue=none" for key in (asked, built))
    row, differs = nearest_row(asked, [built, built.replace("m=8", "m=16")])
    assert row == built
    assert "fp32: row ieee, here bf16" in differs
    assert nearest_row(asked, [built.replace("m=8", "m=16")]) == (None, ())
    assert nearest_row(asked, [built.replace("fp32=ieee", "fp32=bf16")]) == (None, ())


def test_a_range_counts_by_its_lower_end() -> None:
    ranged = make_key(64).replace("m=64", "m=32..4096")
    rows = {ranged: make_row(BLOCK_M=1), make_key(128): make_row(BLOCK_M=2)}
    assert blocks(neighbours_of(make_key(32).replace("m=32", "m=32..64"), rows)) == [1, 2]


def test_other_keys_have_no_neighbours() -> None:
    with pytest.raises(ProblemError):
        neighbours_of("mm of nothing", {})


def test_sizes_of_an_epilogue_are_no_difference_of_their_own() -> None:
    """The row that differs in the rows alone is nearest, and only the rows are named."""
    for near, differences in (
        ("silu,mul(f32[16,352])", ("m: row 16, here 32",)),
        (
            "mul(f32[16,352])",
            ("m: row 16, here 32", "epilogue: row mul(f32[16,352]), here silu,mul(f32[32,352])"),
        ),
    ):
        key = "mm m={m} n=352 k=128 f32 a=row b=row out=f32 | epilogue={epilogue}"
        asked = key.format(m=32, epilogue="silu,mul(f32[32,352])")
        rows = {near, "mul(f32[16,352])"}
        found = nearest_row(asked, [key.format(m=16, epilogue=epilogue) for epilogue in rows])
        assert found == (key.format(m=16, epilogue=near), differences)
