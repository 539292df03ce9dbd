"""Keys of kind ``gemm``: their text form, which text is refused, and which row is nearest."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core.errors import ProblemError
from warmup.keys.gemm import Dim, GemmProblem, Layout, format_number
from warmup.keys.kind import MAX_KEY_LENGTH
from warmup.keys.registry import check_key, differing_ingredients, ingredients_of, nearest_row

SIZES = st.integers(0, 2**31)
DTYPES = st.sampled_from(["bf16", "f16", "f32", "f64", "f8_e4m3fn", "i8"])
EPILOGUES = st.sampled_from(
    ["none", "relu", "silu,mul(bf16[m,n])", "add(f32[560,1280]),relu", "scale(-1.5e-05)"]
)
NUMBERS = st.one_of(
    st.integers(-1000, 1000), st.floats(allow_nan=False, allow_infinity=False, width=32)
)


@st.composite
def dims(draw: st.DrawFn) -> Dim:
    """Return a constant or a dynamic dim, with or without an upper end."""
    low = draw(SIZES)
    return draw(
        st.sampled_from([Dim.of(low), Dim(low, None), Dim(low, low + draw(st.integers(1, 999)))])
    )


LAYOUTS = st.builds(
    Layout,
    st.sampled_from(["row", "col", "packed", "any(1,512)", "any(0..,1)"]),
    st.none() | dims(),
    st.none() | dims(),
)
PROBLEMS = st.builds(
    GemmProblem,
    op=st.sampled_from(["mm", "addmm", "bmm", "baddbmm", "linear_unary", "scaled_mm2"]),
    m=dims(),
    n=dims(),
    k=dims(),
    dtype=DTYPES,
    a=LAYOUTS,
    b=LAYOUTS,
    out=DTYPES,
    batch=st.none() | dims(),
    dtype_b=st.none() | DTYPES,
    a2=st.none() | LAYOUTS,
    b2=st.none() | LAYOUTS,
    bias=st.none() | st.sampled_from(["1d", "2d", "full"]),
    alpha=NUMBERS,
    beta=NUMBERS,
    fp32=st.none() | st.sampled_from(["tf32", "ieee"]),
    full_reduction=st.booleans(),
    epilogue=EPILOGUES,
)
PLAIN = GemmProblem(
    op="addmm",
    m=Dim.of(560),
    n=Dim.of(1280),
    k=Dim.of(3420),
    dtype="bf16",
    a=Layout("row"),
    b=Layout("col"),
    out="bf16",
    bias="1d",
    epilogue="gelu_tanh",
)
CHANGES = {
    "op": "addmm2",
    "m": Dim.of(561),
    "n": Dim(1280, None),
    "k": Dim(3420, 3421),
    "dtype": "f16",
    "a": Layout("col"),
    "b": Layout("col", Dim.of(4096)),
    "out": "f32",
    "batch": Dim.of(1),
    "dtype_b": "f8_e4m3fn",
    "a2": Layout("row"),
    "b2": Layout("row"),
    "bias": None,
    "alpha": 0.5,
    "beta": 0,
    "fp32": "tf32",
    "scale": "f32[]:f32[]",
    "fast_accum": True,
    "full_reduction": True,
    "epilogue": "relu",
}


def key_of(m: str = "560", n: str = "1280", op: str = "mm", epilogue: str = "none") -> str:
    return f"{op} m={m} n={n} k=64 f32 a=row b=col out=f32 | epilogue={epilogue}"


def test_the_documented_problem_has_the_documented_key() -> None:
    """The example in the module and in the design is what `key` returns."""
    assert PLAIN.key == (
        "addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d out=bf16 | epilogue=gelu_tanh"
    )


def test_every_ingredient_has_its_place() -> None:
    """The key of a problem with every optional ingredient has each once, in a fixed order."""
    problem = replace(
        PLAIN,
        op="baddbmm",
        batch=Dim(2, 8),
        m=Dim(1, None),
        dtype_b="f16",
        a=Layout("row", Dim.of(4096), Dim.of(99)),
        a2=Layout("packed"),
        b2=Layout("any(1,512)"),
        alpha=0.5,
        beta=-2.0,
        fp32="tf32",
        full_reduction=True,
    )
    assert problem.key == (
        "baddbmm batch=2..8 m=1.. n=1280 k=3420 bf16 dtype_b=f16 a=row/4096@99 b=col a2=packed "
        "b2=any(1,512) bias=1d alpha=0.5 beta=-2 out=bf16 fp32=tf32 reduction=full "
        "| epilogue=gelu_tanh"
    )


@given(PROBLEMS)
def test_a_key_names_what_the_problem_says(problem: GemmProblem) -> None:
    optional = {
        "batch": problem.batch,
        "dtype_b": None if problem.dtype_b == problem.dtype else problem.dtype_b,
        "a2": problem.a2,
        "b2": problem.b2,
        "bias": problem.bias,
        "alpha": None if problem.alpha == 1 else format_number(problem.alpha),
        "beta": None if problem.beta == 1 else format_number(problem.beta),
        "fp32": problem.fp32,
        "reduction": "full" if problem.full_reduction else None,
    }
    always = ("op", "m", "n", "k", "dtype", "a", "b", "out", "epilogue")
    assert ingredients_of(problem.key) == {
        **{name: str(getattr(problem, name)) for name in always},
        **{name: str(value) for name, value in optional.items() if value is not None},
    }


@given(PROBLEMS)
def test_equal_problems_have_equal_keys(problem: GemmProblem) -> None:
    again = GemmProblem(**{field.name: getattr(problem, field.name) for field in fields(problem)})
    assert again.key == problem.key


def test_one_changed_ingredient_changes_the_key() -> None:
    for name in [field.name for field in fields(GemmProblem)]:
        assert replace(PLAIN, **{name: CHANGES[name]}).key != PLAIN.key  # type: ignore[arg-type]


@given(st.sampled_from(sorted(CHANGES)), st.sampled_from(sorted(CHANGES)))
def test_changes_of_different_ingredients_never_meet(one: str, other: str) -> None:
    first = replace(PLAIN, **{one: CHANGES[one]})  # type: ignore[arg-type]
    second = replace(PLAIN, **{other: CHANGES[other]})  # type: ignore[arg-type]
    assert (first.key == second.key) == (one == other)


def test_what_cannot_be_spelled_is_a_problem_error() -> None:
    for changes in (
        {"op": "ADDMM"},
        {"op": "add mm"},
        {"op": ""},
        {"dtype": "torch.bf16"},
        {"a": Layout("diagonal")},
        {"a": Layout("row", Dim.of(-1))},
        {"m": Dim.of(-560)},
        {"m": Dim(-1, 5)},
        {"alpha": float("inf")},
        {"alpha": float("nan")},
        {"epilogue": ""},
        {"epilogue": "a | epilogue=b"},
        {"epilogue": "relu\n"},
        {"epilogue": "é"},
        {"epilogue": "x" * MAX_KEY_LENGTH},
        {"bias": "1d out=f64"},
    ):
        with pytest.raises(ProblemError):
            replace(PLAIN, **changes)  # type: ignore[arg-type]


def test_other_text_is_no_key() -> None:
    for key in (
        "",
        "mm",
        key_of() + "\n",
        " " + key_of(),
        key_of().replace("m=560 n=1280", "n=1280 m=560"),
        key_of(m="٥٦٠"),
        key_of(m="-1"),
        key_of(m="..5"),
        key_of(epilogue=""),
        key_of(epilogue="x y"),
        key_of(epilogue="x" * MAX_KEY_LENGTH),
        key_of().replace(" out=f32", ""),
        key_of().replace(" |", ""),
        key_of().replace("a=row", "a=row/"),
        key_of() + " | epilogue=none",
        key_of(epilogue="__import__('os')"),
    ):
        with pytest.raises(ProblemError):
            check_key(key)


@given(st.text(max_size=80) | st.from_regex(r"[a-z]+ m=[0-9]+ n=.* \| epilogue=.*"))
def test_no_text_breaks_the_reader_of_keys(text: str) -> None:
    """Reading any text as a key gives its op first or a ProblemError, nothing else."""
    try:
        first = next(iter(ingredients_of(text)))
    except ProblemError:
        return
    assert first == "op"


def test_a_refused_key_is_not_quoted_whole() -> None:
    """The complaint about a very long key stays short."""
    with pytest.raises(ProblemError) as caught:
        check_key("k" * 100_000)
    assert len(str(caught.value)) < 200


def test_numbers_are_written_shortly() -> None:
    """Whole numbers have no point, and other numbers at most six digits."""
    for value, text in (
        (1, "1"),
        (1.0, "1"),
        (True, "1"),
        (-2.0, "-2"),
        (0.1, "0.1"),
        (1e-7, "1e-07"),
        (1 / 3, "0.333333"),
    ):
        assert format_number(value) == text


def test_differences_name_both_sides() -> None:
    row, asked = {"m": "1", "bias": "1d", "k": "8"}, {"m": "2", "fp32": "tf32", "k": "8"}
    assert differing_ingredients(row, asked) == (
        "m: row 1, here 2",
        "fp32: row absent, here tf32",
        "bias: row 1d, here absent",
    )


def test_the_nearest_row_has_the_fewest_differences() -> None:
    """One differing ingredient is nearer than two, however much closer the m of the two is."""
    far, relu = key_of(m="9999"), key_of(m="561", epilogue="relu")
    assert nearest_row(key_of(), [relu, far]) == (far, ("m: row 9999, here 560",))
    # Among rows that differ in m alone, the row with the closest m is taken.
    rows = [key_of(m="1024"), key_of(m="99"), key_of(m="600")]
    assert nearest_row(key_of(m="560"), rows)[0] == key_of(m="600")
    # The m of a dynamic row is compared by the low end of its range.
    rows = [key_of(m="100..700"), key_of(m="550..")]
    assert nearest_row(key_of(m="560"), rows)[0] == key_of(m="550..")
    # Rows of another op are never near.
    assert nearest_row(key_of(op="mm"), [key_of(op="mm_plus_mm"), key_of(op="bmm")]) == (None, ())


@given(st.lists(PROBLEMS, max_size=6), PROBLEMS, st.randoms(use_true_random=False))
def test_the_nearest_row_does_not_depend_on_the_order(
    rows: list[GemmProblem], asked: GemmProblem, random: Random
) -> None:
    keys = [row.key for row in rows]
    shuffled = random.sample(keys, len(keys))
    assert nearest_row(asked.key, keys) == nearest_row(asked.key, shuffled)


@given(st.lists(PROBLEMS, min_size=1, max_size=6), PROBLEMS)
def test_no_row_of_the_op_differs_in_fewer_ingredients(
    rows: list[GemmProblem], asked: GemmProblem
) -> None:
    counts = [
        len(differing_ingredients(ingredients_of(row.key), ingredients_of(asked.key)))
        for row in rows
        if row.op == asked.op
    ]
    found, differs = nearest_row(asked.key, [row.key for row in rows])
    if counts or found is None:
        assert (found is None, len(differs)) == (not counts, min(counts, default=0))
    else:  # of another op: a row of the same sizes in another precision
        assert any(each.split(":")[0] in {"dtype", "fp32"} for each in differs)
