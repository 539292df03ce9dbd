"""Epilogues of GEMM keys as expressions, and a ProblemError for any other text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core.errors import ProblemError
from warmup.keys.gemm import INPUT, Call, Operand, Word, parse_epilogue


def test_an_epilogue_is_read_as_steps() -> None:
    """Each step is a call with the input ``x``, as its first argument unless it is named."""
    bias = Operand("f32", (None, 8))
    for text, steps in (
        ("none", ()),
        ("relu", (Call("relu", (INPUT,)),)),
        (
            "gelu_tanh,mul(bf16[560,1280])",
            (Call("gelu_tanh", (INPUT,)), Call("mul", (INPUT, Operand("bf16", (560, 1280))))),
        ),
        ("mul(sin(x),x)", (Call("mul", (Call("sin", (INPUT,)), INPUT)),)),
        ("sub(f32[],x)", (Call("sub", (Operand("f32", ()), INPUT)),)),
        ("add(f32[s,8],alpha_2)", (Call("add", (INPUT, bias), (("alpha", 2.0),)),)),
        ("clamp(none,-0.5)", (Call("clamp", (INPUT, Word("none"), -0.5)),)),
        ("pow(2),to(f32)", (Call("pow", (INPUT, 2)), Call("to", (INPUT, Word("f32"))))),
        ("mul(1e-05)", (Call("mul", (INPUT, 1e-05)),)),
    ):
        assert parse_epilogue(text) == steps


def test_what_cannot_be_read_back_is_a_problem_error() -> None:
    for text in (
        *("~0123456789ab", "relu,~01(x)", "1", "bf16[2]", "f(", "f(x", "f)", "", "F(x)", "f(x)y"),
        *("f(" * 500 + "x" + ")" * 500, "mul([1.2])"),
    ):
        with pytest.raises(ProblemError):
            parse_epilogue(text)


@given(st.text(alphabet="x1.,()[]~_amul-", max_size=60))
def test_no_epilogue_breaks_the_reader(text: str) -> None:
    try:
        steps = parse_epilogue(text)
    except ProblemError:
        return
    assert all(isinstance(step, Call) for step in steps)
