"""Which rows are near a key: neighbours for a search, and the nearest row for a miss."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_tables import make_key, make_row, make_rows

from warmup.core.errors import ProblemError
from warmup.core.rows import Family, Row, Winner
from warmup.keys.kind import Kind
from warmup.keys.registry import nearest_row, neighbours_of


def blocks(key: str, rows: dict[str, Row], most: int = 9) -> list[object]:
    return [dict(winner.kwargs)["BLOCK_M"] for winner in neighbours_of(key, rows, most)]


def test_neighbours_are_the_winners_of_the_nearest_sizes() -> None:
    """By ratio: to m=32, 40 is nearest; 16 and 64 are equally far, and 4096 the farthest."""
    rows = make_rows(4096, 64, 16, 40)
    assert blocks(make_key(32), rows) == [40, 16, 64, 4096]
    assert blocks(make_key(32), dict(reversed(rows.items()))) == [40, 16, 64, 4096]
    assert blocks(make_key(200), rows, 1) == [64]
    # Two rows with the same winner count as one neighbour, so that a third row is taken.
    rows = {make_key(m): make_row(BLOCK_M=64 if m < 100 else m) for m in (16, 32, 256)}
    assert blocks(make_key(24), rows, 2) == [64, 256]
    # A range counts by its lower end.
    rows = {make_key("32..4096"): make_row(BLOCK_M=1), make_key(128): make_row(BLOCK_M=2)}
    assert blocks(make_key("32..64"), rows) == [1, 2]
    with pytest.raises(ProblemError):
        neighbours_of("mm of nothing", {})


def test_only_a_measured_config_of_such_a_product_is_a_neighbour(toy_kind: Kind) -> None:
    """Another leading dimension or epilogue is no obstacle; a library's winner is."""
    near = make_key(64)
    others = (
        near.replace("addmm", "mm").replace(" bias=1d", ""),
        near.replace("bf16", "f16"),
        near.replace("b=col", "b=row"),
        "toy cat m=1 n=4 via=sum f32 tag=7",
    )
    rows = {key: make_row() for key in others}
    rows[near] = replace(make_row(), winner=Winner(Family.EXTERN, "aten::addmm"))
    assert neighbours_of(make_key(32), rows) == ()
    rows[make_key(64, epilogue="relu").replace("a=row", "a=row/4096")] = make_row(BLOCK_M=64)
    assert blocks(make_key(32), rows) == [64]


def gemm(m: str, n: str = "1280", op: str = "mm", epilogue: str = "none") -> str:
    return f"{op} m={m} n={n} k=64 f32 a=row b=col out=f32 | epilogue={epilogue}"


def pad(m: str, op: str = "mm", end: str = "") -> str:
    return f"pad {op} m={m} n=8 k=9 bf16 a=row b=col{end}"


def launch(x: int, kernel: str = "poi", source: str = "0") -> str:
    return f"launch triton_{kernel} x={x} args=*bf16 source={source * 16}"


def norm(x: int) -> str:
    return f"reduction sum x={x} r=768 hint=inner reads=bf16 writes=bf16 body={'0' * 16}"


def head(m: int) -> str:
    return f"weight n m={m} in=768 features=50257 bf16 bias=0"


NEAREST: tuple[tuple[str, list[str], str | None, tuple[str, ...]], ...] = (
    # One differing ingredient is nearer than two, however much closer the m of the two is.
    (gemm("560"), [gemm("561", epilogue="relu"), gemm("9999")], gemm("9999"), ("m",)),
    (gemm("560"), [gemm("1024"), gemm("99"), gemm("600")], gemm("600"), ("m",)),
    # A range counts by its lower end.
    (gemm("560"), [gemm("100..700"), gemm("550..")], gemm("550.."), ("m",)),
    (pad("560"), [pad("1024"), pad("256"), pad("512..1024")], pad("512..1024"), ("m",)),
    (pad("560"), [pad("561", end=" free=a"), pad("560", end=" free=a")], None, ("free",)),
    (launch(64), [launch(4096), launch(128), launch(1024)], launch(128), ("x",)),
    (launch(64), [launch(128, source="1"), launch(64, source="1")], None, ("source",)),
    (norm(10960), [norm(16), norm(8192)], norm(8192), ("x",)),
    (head(560), [head(16), head(512)], head(512), ("m",)),
    # The op, the kernel or the form is always that of the key.
    (gemm("560"), [gemm("560", op="mm_plus_mm"), gemm("560", op="bmm")], None, ()),
    (pad("560"), [pad("560", "addmm")], None, ()),
    (launch(64), [launch(64, "red")], None, ()),
    (head(560), ["weight k m=560 features=588 out=1024 bf16 bias=1"], None, ()),
)


def test_the_nearest_row_differs_in_the_fewest_ingredients_and_the_closest_size() -> None:
    """Whatever the order of the rows."""
    for key, rows, expected, names in NEAREST:
        row, differs = nearest_row(key, rows)
        assert (row, differs) == nearest_row(key, rows[::-1])
        assert row == (expected or (rows[-1] if names else None)), key
        assert tuple(each.partition(":")[0] for each in differs) == names
    row, differs = nearest_row(gemm("2"), [gemm("1").replace(" | ", " fp32=tf32 | ")])
    assert differs == ("m: row 1, here 2", "fp32: row tf32, here absent")
