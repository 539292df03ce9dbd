"""Reading what keys spell: problems, and epilogues as expressions.

    mul(sin(x),x),add(bf16[560,1280]),to(f32)

is three steps, each a call; a step that does not name its input ``x`` takes it first. Keys come
from logs, so nothing in them is taken for granted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import ProblemError
from warmup.keys.gemm import GEMM, NO_EPILOGUE, Dim, GemmProblem, Layout
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
    """A tensor that an epilogue reads beside the GEMM; a size of a dynamic dim is None."""

    dtype: str
    sizes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """A bare word: ``x``, the value so far; ``none``; or a dtype."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operation on expressions; ``named`` are its scalar keyword arguments."""

    name: str
    arguments: tuple[Expression, ...]
    named: tuple[tuple[str, float], ...] = ()


Expression = Call | Operand | Word | int | float
INPUT: Final = Word("x")


def parse_problem(key: str) -> GemmProblem:
    """Return the problem that the GEMM key *key* spells.

    Raises:
        ProblemError: it is not a GEMM key.
    """
    named = GEMM.ingredients(key)

    def dim(name: str) -> Dim:
        return _dim(named[name])

    def layout(name: str) -> Layout | None:
        return _layout(named[name]) if name in named else None

    return GemmProblem(
        op=named["op"],
        m=dim("m"),
        n=dim("n"),
        k=dim("k"),
        batch=dim("batch") if "batch" in named else None,
        dtype=named["dtype"],
        dtype_b=named.get("dtype_b"),
        a=_layout(named["a"]),
        b=_layout(named["b"]),
        a2=layout("a2"),
        b2=layout("b2"),
        bias=named.get("bias"),
        scale=named.get("scale"),
        fast_accum="accum" in named,
        alpha=float(named.get("alpha", 1)),
        beta=float(named.get("beta", 1)),
        out=named["out"],
        fp32=named.get("fp32"),
        full_reduction=named.get("reduction") == "full",
        epilogue=named["epilogue"],
    )


def at_upper_end(key: str) -> str:
    """Return *key* as `GemmProblem.at_upper_end` has it; a key of another kind as it is.

    Raises:
        ProblemError: a GEMM key has a range and cannot be read back.
    """
    if ".." not in key or kind_of(key) is not GEMM:
        return key
    return parse_problem(key).at_upper_end().key


def parse_epilogue(text: str) -> tuple[Call, ...]:
    """Return the steps of the epilogue *text*, each with its input; none for ``none``.

    Raises:
        ProblemError: a step is spelled as a hash, or in a way that cannot be read back.
    """
    if text == NO_EPILOGUE:
        return ()
    return tuple(_step(part) for part in _split(text))


def operands_of(expression: Expression) -> tuple[Operand, ...]:
    """Return the operands in *expression*, in the order in which they stand."""
    if isinstance(expression, Operand):
        return (expression,)
    if isinstance(expression, Call):
        return tuple(found for part in expression.arguments for found in operands_of(part))
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
    parts = _split(rest[:-1])
    scalars = [_NAMED_SCALAR.fullmatch(part) for part in parts]
    named = tuple((found["name"], float(found["value"])) for found in scalars if found)
    positional = [part for part, found in zip(parts, scalars, strict=True) if not found]
    return Call(name, tuple(_expression(part, depth + 1) for part in positional), named)


def _split(text: str) -> list[str]:
    """Return the parts of *text* between the commas outside any bracket."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _dim(text: str) -> Dim:
    low, dots, high = text.partition("..")
    if not dots:
        return Dim.of(int(low))
    return Dim(int(low), int(high) if high else None)


def _layout(text: str) -> Layout:
    found = _LAYOUT_TEXT.fullmatch(text)
    if found is None:
        raise ProblemError(f"the layout {text} cannot be read back")
    leading, batch = found["leading"], found["batch"]
    return Layout(
        found["order"],
        None if leading is None else _dim(leading),
        None if batch is None else _dim(batch),
    )
