"""Keys of kind ``pad``: their ingredients, which text is refused, and which row is nearest."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core.errors import ProblemError
from warmup.core.rows import Family
from warmup.keys.gemm import Dim, Layout
from warmup.keys.pad import PAD, PadProblem
from warmup.keys.registry import check_key, ingredients_of, kind_of, nearest_row

PLAIN = PadProblem(
    op="addmm",
    m=Dim.of(560),
    n=Dim.of(1280),
    k=Dim.of(3420),
    dtype="bf16",
    a=Layout("row"),
    b=Layout("col"),
    bias="1d",
    free="a",
)
CHANGES: dict[str, object] = {
    "op": "mm",
    "m": Dim(2, 1024),
    "n": Dim.of(1281),
    "k": Dim.of(3421),
    "dtype": "f16",
    "a": Layout("row", Dim.of(3424)),
    "b": Layout("row"),
    "batch": Dim.of(4),
    "bias": "2d",
    "free": "ab",
    "fp32": "tf32",
}
SIZES = st.integers(0, 2**31)
DIMS = SIZES.map(Dim.of) | st.builds(
    lambda low, more: Dim(low, None if more is None else low + more), SIZES, st.none() | SIZES
)
LAYOUTS = st.builds(Layout, st.sampled_from(["row", "col"]), st.none() | DIMS, st.none() | DIMS)
PROBLEMS = st.builds(
    PadProblem,
    op=st.sampled_from(["mm", "addmm", "bmm"]),
    m=DIMS,
    n=DIMS,
    k=DIMS,
    dtype=st.sampled_from(["bf16", "f16", "f32"]),
    a=LAYOUTS,
    b=LAYOUTS,
    batch=st.none() | DIMS,
    bias=st.sampled_from([None, "scalar", "1d", "2d"]),
    free=st.sampled_from(["", "a", "b", "ab"]),
    fp32=st.sampled_from([None, "ieee", "tf32"]),
)


def key_of(m: int | tuple[int, int], *, op: str = "addmm", free: str = "") -> str:
    dim = Dim.of(m) if isinstance(m, int) else Dim(*m)
    return replace(PLAIN, op=op, m=dim, free=free).key


def test_keys_read_as_documented() -> None:
    assert PLAIN.key == "pad addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d free=a"
    # A key with every optional ingredient has them in a fixed order.
    problem = replace(PLAIN, op="bmm", batch=Dim(1, None), m=Dim(2, 1024), dtype="f32", fp32="tf32")
    assert problem.key == (
        "pad bmm batch=1.. m=2..1024 n=1280 k=3420 f32 a=row b=col bias=1d free=a fp32=tf32"
    )


@given(PROBLEMS)
def test_a_key_is_canonical_and_reads_back(problem: PadProblem) -> None:
    key = problem.key
    check_key(key)
    assert kind_of(key) is PAD
    named = {field.name: getattr(problem, field.name) for field in fields(problem)}
    spelled = {name: str(value) for name, value in named.items() if value not in (None, "")}
    assert ingredients_of(key) == {"kind": "pad", **spelled}


def test_one_changed_ingredient_changes_the_key() -> None:
    for name in [field.name for field in fields(PadProblem)]:
        assert replace(PLAIN, **{name: CHANGES[name]}).key != PLAIN.key  # type: ignore[arg-type]


@given(st.sampled_from(sorted(CHANGES)), st.sampled_from(sorted(CHANGES)))
def test_changes_of_different_ingredients_never_meet(one: str, other: str) -> None:
    first = replace(PLAIN, **{one: CHANGES[one]})  # type: ignore[arg-type]
    second = replace(PLAIN, **{other: CHANGES[other]})  # type: ignore[arg-type]
    assert (first.key == second.key) == (one == other)


def test_what_cannot_be_spelled_is_a_problem_error() -> None:
    for changes in (
        {"op": "baddbmm"},
        {"op": "conv"},
        {"m": Dim.of(-1)},
        {"dtype": "torch.bfloat16"},
        {"a": Layout("diagonal")},
        {"bias": "1d free=a"},
        {"free": "ba"},
        {"free": "c"},
        {"fp32": ""},
    ):
        with pytest.raises(ProblemError):
            replace(PLAIN, **changes)  # type: ignore[arg-type]


def test_other_text_is_no_key() -> None:
    for key in (
        "pad",
        "pad ",
        PLAIN.key + "\n",
        PLAIN.key + " | epilogue=none",
        PLAIN.key.replace("bf16 ", ""),
        PLAIN.key.replace("bias=1d free=a", "free=a bias=1d"),
        PLAIN.key.replace("pad addmm", "pad  addmm"),
    ):
        with pytest.raises(ProblemError):
            check_key(key)


def test_the_nearest_row_has_the_fewest_differences() -> None:
    assert nearest_row(key_of(560), [key_of(560, op="mm")]) == (None, ())
    # The same size with another free operand is nearer than a neighbouring size with it.
    rows = [key_of(561, free="a"), key_of(560, free="a")]
    assert nearest_row(key_of(560), rows) == (rows[1], ("free: row a, here absent",))
    # A range counts by its lower end.
    rows = [key_of(1024), key_of(256), key_of((512, 1024))]
    assert nearest_row(key_of(560), rows) == (rows[2], ("m: row 512..1024, here 560",))


def test_only_pad_winners_answer() -> None:
    assert PAD.families == {Family.PAD}
