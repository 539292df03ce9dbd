"""Parsing keys: problems and epilogues, and a ProblemError for any other text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core.errors import ProblemError
from warmup.keys.gemm import Dim, GemmProblem, Layout
from warmup.keys.text import INPUT, Call, Operand, Word, at_upper_end, parse_epilogue, parse_problem

PLAIN = GemmProblem(
    op="mm",
    m=Dim.of(16),
    n=Dim.of(8),
    k=Dim.of(4),
    dtype="bf16",
    a=Layout("row"),
    b=Layout("col"),
    out="bf16",
)
FULL = GemmProblem(
    op="baddbmm",
    batch=Dim(2, None),
    m=Dim(2, 64),
    n=Dim.of(8),
    k=Dim.of(4),
    dtype="f32",
    dtype_b="f16",
    a=Layout("row", Dim.of(9), Dim.of(0)),
    b=Layout("any(7,3)"),
    a2=Layout("packed"),
    b2=Layout("col", Dim(2, 8)),
    bias="2d",
    alpha=0.5,
    beta=-2,
    out="f32",
    fp32="tf32",
    full_reduction=True,
    epilogue="relu",
)


def test_a_key_is_read_back() -> None:
    for problem in (PLAIN, FULL):
        assert parse_problem(problem.key) == problem


def test_an_epilogue_is_read_as_steps() -> None:
    """Each step is a call with the input ``x``, as its first argument unless it is named."""
    for text, steps in (
        ("none", ()),
        ("relu", (Call("relu", (INPUT,)),)),
        (
            "gelu_tanh,mul(bf16[560,1280])",
            (Call("gelu_tanh", (INPUT,)), Call("mul", (INPUT, Operand("bf16", (560, 1280))))),
        ),
        ("mul(sin(x),x)", (Call("mul", (Call("sin", (INPUT,)), INPUT)),)),
        ("sub(f32[],x)", (Call("sub", (Operand("f32", ()), INPUT)),)),
        (
            "add(f32[s,8],alpha_2)",
            (Call("add", (INPUT, Operand("f32", (None, 8))), (("alpha", 2.0),)),),
        ),
        ("clamp(none,-0.5)", (Call("clamp", (INPUT, Word("none"), -0.5)),)),
        ("pow(2),to(f32)", (Call("pow", (INPUT, 2)), Call("to", (INPUT, Word("f32"))))),
        ("mul(1e-05)", (Call("mul", (INPUT, 1e-05)),)),
    ):
        assert parse_epilogue(text) == steps


def test_what_cannot_be_read_back_is_said() -> None:
    """A hash, a stray bracket or endless nesting is a ProblemError."""
    for text in (
        *("~0123456789ab", "relu,~01(x)", "1", "bf16[2]", "f(", "f(x", "f)", "", "F(x)", "f(x)y"),
        *("f(" * 500 + "x" + ")" * 500, "mul([1.2])"),
    ):
        with pytest.raises(ProblemError):
            parse_epilogue(text)


@given(st.text(alphabet="x1.,()[]~_amul-", max_size=60))
def test_no_epilogue_breaks_the_reader(text: str) -> None:
    """Any text is parsed to steps or raises a ProblemError."""
    try:
        steps = parse_epilogue(text)
    except ProblemError:
        return
    assert all(isinstance(step, Call) for step in steps)


RANGED = "mm m={} n=512 k=256 bf16 a=row b=row out=bf16 | epilogue={}"


def test_a_region_asks_for_the_size_of_its_bucket() -> None:
    """The upper end replaces the range, and dynamic sizes in the epilogue."""
    for key, asked in (
        (RANGED.format("33..64", "none"), RANGED.format("64", "none")),
        (RANGED.format("33..64", "mul(bf16[s,512])"), RANGED.format("64", "mul(bf16[64,512])")),
        (RANGED.format("64", "mul(bf16[64,512])"), RANGED.format("64", "mul(bf16[64,512])")),
    ):
        assert at_upper_end(key) == asked
    # A range without an end, or two ranges of different ends, stay in the key.
    for key in (
        RANGED.format("2..", "relu"),
        "bmm batch=2..8 m=33..64 n=512 k=256 bf16 a=row b=row out=bf16 | epilogue=relu",
    ):
        assert at_upper_end(key) == key
