"""`parse_problem` and `parse_epilogue`: GEMM keys as problems, epilogues as expressions.

    mul(sin(x),x),add(bf16[560,1280]),to(f32)

is an epilogue of three steps, each a call. A step that does not name its input ``x`` takes it as
its first argument. Keys may come from logs, so every part of their text is checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import ProblemError
from warmup.keys.gemm import CPU_LINEAR, GEMM, NO_EPILOGUE, Dim, GemmProblem, Layout
from warmup.keys.grouped import GROUPED, GroupedProblem, Over
from warmup.keys.pad import PAD, PadProblem
from warmup.keys.question import Linear
from warmup.keys.registry import kind_of

_MAX_DEPTH: Final = 32
_NUMBER_TEXT: Final = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|inf)|nan")
_BARE_WORD: Final = re.compile(r"[a-z][a-z0-9_]*")
_OPERAND: Final = re.compile(
    r"(?P<dtype>[a-z][a-z0-9_]*)\[(?P<sizes>(?:[0-9]+|s)(?:,(?:[0-9]+|s))*)?\]"
)
_NAMED_SCALAR: Final = re.compile(rf"(?P<name>alpha)_(?P<value>{_NUMBER_TEXT.pattern})")
_LAYOUT_TEXT: Final = re.compile(
    r"(?P<order>[a-z]+(?:\([0-9.,]+\))?)(?:/(?P<leading>[0-9.]+))?(?:@(?P<batch>[0-9.]+))?"
)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that an epilogue reads beside the GEMM's result; a dynamic size is None."""

    dtype: str
    sizes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """A bare word: ``x`` (the result of the step before), ``none`` or a dtype."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operation on expressions; ``named`` has its scalar keyword arguments."""

    name: str
    arguments: tuple[Expression, ...]
    named: tuple[tuple[str, float], ...] = ()


Expression = Call | Operand | Word | int | float
INPUT: Final = Word("x")


def parse_problem(key: str) -> GemmProblem:
    """Return the problem with the GEMM key *key*.

    Raises:
        ProblemError: *key* is not a GEMM key.
    """
    parts = GEMM.ingredients(key)

    def dim(name: str) -> Dim:
        return read_dim(parts[name])

    def layout(name: str) -> Layout | None:
        return read_layout(parts[name]) if name in parts else None

    return GemmProblem(
        op=parts["op"],
        m=dim("m"),
        n=dim("n"),
        k=dim("k"),
        batch=dim("batch") if "batch" in parts else None,
        dtype=parts["dtype"],
        dtype_b=parts.get("dtype_b"),
        a=read_layout(parts["a"]),
        b=read_layout(parts["b"]),
        a2=layout("a2"),
        b2=layout("b2"),
        bias=parts.get("bias"),
        scale=parts.get("scale"),
        fast_accum="accum" in parts,
        alpha=float(parts.get("alpha", 1)),
        beta=float(parts.get("beta", 1)),
        out=parts["out"],
        fp32=parts.get("fp32"),
        full_reduction=parts.get("reduction") == "full",
        epilogue=parts["epilogue"],
    )


def linears_of(key: str) -> tuple[Linear, ...]:
    """Return the linears that ask for *key* where a CPU freezes their weights; often none.

    A packed linear of MKL adds its bias apart, so its key does not say whether there is one.
    """
    problem = parse_problem(key)
    if problem.op not in CPU_LINEAR:
        return ()
    m, n, k = (dim.low if dim.is_static else None for dim in (problem.m, problem.n, problem.k))
    biases = (False, True) if problem.op == "packed_linear" else (problem.bias is not None,)
    if n is None or k is None:
        return ()
    return tuple(Linear(m, n, k, problem.dtype, has_bias) for has_bias in biases)


def at_upper_end(key: str) -> str:
    """Return the key of `GemmProblem.at_upper_end`; keys of other kinds are returned unchanged.

    Raises:
        ProblemError: *key* is a GEMM key with a range and cannot be parsed.
    """
    if ".." not in key or kind_of(key) is not GEMM:
        return key
    return parse_problem(key).at_upper_end().key


def parse_epilogue(text: str) -> tuple[Call, ...]:
    """Return the steps of the epilogue *text*, each with its input ``x``; empty for ``none``.

    Raises:
        ProblemError: a step is a hash or another text that cannot be parsed.
    """
    if text == NO_EPILOGUE:
        return ()
    return tuple(_step(part) for part in split_arguments(text))


def operands_of(expression: Expression) -> tuple[Operand, ...]:
    """Return the operands in *expression*, from left to right."""
    if isinstance(expression, Operand):
        return (expression,)
    if isinstance(expression, Call):
        return tuple(operand for part in expression.arguments for operand in operands_of(part))
    return ()


def _step(text: str) -> Call:
    expression = _expression(text, 0)
    if isinstance(expression, Word):
        return Call(expression.text, (INPUT,))
    if not isinstance(expression, Call):
        raise ProblemError(f"the epilogue step {text} is no operation")
    if _reads_input(expression):
        return expression
    return Call(expression.name, (INPUT, *expression.arguments), expression.named)


def _reads_input(expression: Expression) -> bool:
    if isinstance(expression, Call):
        return any(_reads_input(part) for part in expression.arguments)
    return expression == INPUT


def _expression(text: str, depth: int) -> Expression:
    if depth > _MAX_DEPTH:
        raise ProblemError("the epilogue is nested too deeply")
    if _NUMBER_TEXT.fullmatch(text):
        return int(text) if text.lstrip("-").isdigit() else float(text)
    if _BARE_WORD.fullmatch(text):
        return Word(text)
    operand = _OPERAND.fullmatch(text)
    if operand is not None:
        sizes = operand["sizes"].split(",") if operand["sizes"] else []
        return Operand(operand["dtype"], tuple(None if s == "s" else int(s) for s in sizes))
    name, bracket, rest = text.partition("(")
    if not bracket or not rest.endswith(")") or _BARE_WORD.fullmatch(name) is None:
        raise ProblemError(f"the epilogue has {text[:80]}, which cannot be read back")
    parts = split_arguments(rest[:-1])
    scalars = [_NAMED_SCALAR.fullmatch(part) for part in parts]
    named = tuple((scalar["name"], float(scalar["value"])) for scalar in scalars if scalar)
    positional = [part for part, scalar in zip(parts, scalars, strict=True) if not scalar]
    return Call(name, tuple(_expression(part, depth + 1) for part in positional), named)


def split_arguments(text: str) -> list[str]:
    """Return the parts of *text* between commas that are outside of any bracket."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def read_dim(text: str) -> Dim:
    """Return the size or range that a key spells *text*."""
    low, dots, high = text.partition("..")
    if not dots:
        return Dim.of(int(low))
    return Dim(int(low), int(high) if high else None)


def read_layout(text: str) -> Layout:
    """Return the layout that a key spells *text*.

    Raises:
        ProblemError: it is none.
    """
    match = _LAYOUT_TEXT.fullmatch(text)
    if match is None:
        raise ProblemError(f"the layout {text} cannot be read back")
    leading, batch = match["leading"], match["batch"]
    return Layout(
        match["order"],
        None if leading is None else read_dim(leading),
        None if batch is None else read_dim(batch),
    )


# `parse_grouped`: a key of grouped products back to its problem.


def parse_grouped(key: str) -> GroupedProblem:
    """Return the problem whose key is *key*.

    Raises:
        ProblemError: *key* is no key of a grouped product.
    """
    named = GROUPED.ingredients(key)
    return GroupedProblem(
        groups=int(named["groups"]),
        over=Over(named["over"]),
        m=int(named["m"]),
        n=int(named["n"]),
        k=int(named["k"]),
        dtype=named["dtype"],
        a=read_layout(named["a"]),
        b=read_layout(named["b"]),
        out=named["out"],
    )


# `parse_padding`: a pad key as a `PadProblem`. Keys may come from logs, and are checked.


def parse_padding(key: str) -> PadProblem:
    """Return the problem with the pad key *key*.

    Raises:
        ProblemError: *key* is not a pad key.
    """
    parts = PAD.ingredients(key)
    return PadProblem(
        op=parts["op"],
        m=read_dim(parts["m"]),
        n=read_dim(parts["n"]),
        k=read_dim(parts["k"]),
        dtype=parts["dtype"],
        a=read_layout(parts["a"]),
        b=read_layout(parts["b"]),
        batch=read_dim(parts["batch"]) if "batch" in parts else None,
        bias=parts.get("bias"),
        free=parts.get("free", ""),
        fp32=parts.get("fp32"),
    )
