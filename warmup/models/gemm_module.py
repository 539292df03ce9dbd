"""`make_gemm_module`: a small model, made from one GEMM problem, that asks inductor for its key.

A key names everything that may change its winner, so a model with these operands and this epilogue
asks the same question as the model that the key came from. Keys are not trusted: operations are
looked up in `OPERATIONS` alone, and operands that do not fit into memory are an error.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from warmup.buckets.bucket import Bucket
from warmup.core.dtypes import item_bytes
from warmup.core.errors import ProblemError
from warmup.keys.gemm import COVERED, CPU_LINEAR, GemmProblem
from warmup.keys.gemm_text import (
    INPUT,
    Call,
    Expression,
    Operand,
    Word,
    parse_epilogue,
    parse_problem,
)
from warmup.models.gemm_tensors import (
    check_memory,
    dtype_of,
    epilogue_tensors,
    gemm_tensors,
    result_view,
    size_of,
)
from warmup.models.loading import LoadedModel
from warmup.models.precision import precision_of
from warmup.models.rebuilt import RebuiltProblem

# The operations of epilogues: those that torch has under inductor's name, then the others.
OPERATIONS: Final[Mapping[str, Callable[..., Any]]] = {
    **{
        name: getattr(torch, name)
        for name in (
            *("abs", "add", "atan", "ceil", "clamp", "clamp_max", "clamp_min", "cos", "div", "eq"),
            *("erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "le", "log", "log1p", "log2"),
            *("logical_and", "logical_not", "logical_or", "lt", "maximum", "minimum", "mul", "ne"),
            *("neg", "pow", "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "sin"),
            *("sqrt", "square", "sub", "tanh", "trunc", "where"),
        )
    },
    "convert_element_type": lambda x, dtype: x.to(dtype),
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "hardsigmoid": nn.functional.hardsigmoid,
    "hardswish": nn.functional.hardswish,
    "hardtanh": nn.functional.hardtanh,
    "leaky_relu": nn.functional.leaky_relu,
    "silu": nn.functional.silu,
    "swish": nn.functional.silu,
    "to": lambda x, dtype: x.to(dtype),
}
_NARROWEST: Final = "bf16"  # of what an epilogue makes of 8 bits: the key may not spell it
_EpilogueStep = Callable[[Any, Sequence[torch.Tensor]], Any]


def rebuild_gemm(key: str, device: torch.device) -> RebuiltProblem:
    """Return the module that `make_gemm_module` makes for *key*, with the settings it needs.

    Raises:
        ProblemError: *key* is not a GEMM key, or no module can be made for its problem.
    """
    problem = parse_problem(key)
    model, bucket = make_gemm_module(problem, device)
    settings = partial(_settings_of, problem, device)
    return RebuiltProblem(model=model, bucket=bucket, settings=settings, dtype=_result(problem))


def _result(problem: GemmProblem) -> str:
    """Return the floating dtype that bounds how exact the result of *problem* is."""
    result = problem.out if problem.op == "scaled_mm" else problem.dtype
    return _NARROWEST if item_bytes(result) == 1 else result


@contextlib.contextmanager
def _settings_of(problem: GemmProblem, device: torch.device) -> Iterator[None]:
    from warmup.inductor.addmm_folding import mm_unfolded

    with (
        precision_of(problem, device),
        mm_unfolded() if problem.op == "mm" else contextlib.nullcontext(),
    ):
        yield


def make_gemm_module(problem: GemmProblem, device: torch.device) -> tuple[LoadedModel, Bucket]:
    """Return a model on *device* that should ask for *problem*, and the bucket of its sizes.

    ``example_inputs`` makes its inputs on *device*. A dynamic dim is marked with its range, and has
    the largest size of the range.

    Raises:
        ProblemError: no module can be made for *problem*.
    """
    if problem.op not in COVERED:
        raise ProblemError(f"the op {problem.op} cannot be rebuilt from a key")
    if problem.op in CPU_LINEAR and device.type != "cpu":
        raise ProblemError(f"the op {problem.op} exists on the CPU only")
    steps = parse_epilogue(problem.epilogue)
    tensors = {**gemm_tensors(problem), **epilogue_tensors(problem, steps)}
    check_memory(tensors.values(), device)
    constant = None
    if device.type == "cpu" and problem.op in (*CPU_LINEAR, "mm", "addmm"):
        constant = tensors.pop("b").make(device)  # only constant weights give inductor a choice
    module = _GemmModule(problem, tuple(tensors), steps, constant)

    def make_inputs(**_sizes: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.make(device) for tensor in tensors.values())

    dims = {"batch": problem.batch, "m": problem.m, "n": problem.n, "k": problem.k}
    sizes = tuple((name, size_of(dim)) for name, dim in dims.items() if dim is not None)
    return LoadedModel(module.eval(), make_inputs, "rebuilt"), Bucket(sizes)


class _GemmModule(nn.Module):
    """The GEMM of *problem* and its epilogue; its arguments are tensors in the order of *names*.

    *constant* is the second operand where that is no argument.
    """

    def __init__(
        self,
        problem: GemmProblem,
        names: tuple[str, ...],
        steps: tuple[Call, ...],
        constant: torch.Tensor | None,
    ) -> None:
        super().__init__()
        numbers = itertools.count()
        view = result_view(problem, steps)
        self.names = names
        self.gemm = _gemm(problem)
        self.view = None if view is None else [d.low if d.is_static else -1 for d in view]
        self.steps = [_compose(step, numbers) for step in steps]
        self.weight = None if constant is None else nn.Parameter(constant, requires_grad=False)

    def forward(self, *tensors: torch.Tensor) -> Any:
        named = dict(zip(self.names, tensors, strict=True))
        if self.weight is not None:
            named["b"] = self.weight
        value = self.gemm(named)
        value = value if self.view is None else value.view(self.view)
        operands = [tensor for name, tensor in named.items() if name.isdigit()]
        for step in self.steps:
            value = step(value, operands)
        return value


def _gemm(problem: GemmProblem) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor]:
    if problem.op == "scaled_mm":
        return partial(_scaled_mm, dtype_of(problem.out), use_fast_accum=problem.fast_accum)
    if problem.op == "int_mm":
        return lambda t: torch._int_mm(t["a"], t["b"])  # noqa: SLF001  its only name
    dtypes: dict[str, Any] = {}
    if problem.out != problem.dtype:
        dtypes["out_dtype"] = dtype_of(problem.out)
    scalars = {"alpha": problem.alpha, "beta": problem.beta}
    op = problem.op
    if op in CPU_LINEAR:
        if dtypes:
            raise ProblemError(f"{op} has another output dtype than its operands, {problem.out}")
        return lambda t: nn.functional.linear(t["a"], t["b"], t.get("bias"))
    if op == "mm_plus_mm":
        return lambda t: torch.mm(t["a"], t["b"]) + torch.mm(t["a2"], t["b2"])
    plain: Callable[..., torch.Tensor] = getattr(torch, op)
    if problem.bias is None:
        return lambda t: plain(t["a"], t["b"], **dtypes)
    return lambda t: plain(t["bias"], t["a"], t["b"], **scalars, **dtypes)


def _scaled_mm(
    out: torch.dtype, t: Mapping[str, torch.Tensor], *, use_fast_accum: bool
) -> torch.Tensor:
    factors, scales = (t["a"], t["b"]), (t["scale_a"], t["scale_b"])
    multiply: Callable[..., torch.Tensor] = torch._scaled_mm  # noqa: SLF001  its name in torch 2.11
    bias = t.get("bias")
    return multiply(*factors, *scales, bias, out_dtype=out, use_fast_accum=use_fast_accum)


def _compose(expression: Expression, numbers: Iterator[int]) -> _EpilogueStep:
    """Return *expression* as a function of the value so far and of all operands.

    *numbers* counts the operands in the order in which they are read.
    """
    if expression == INPUT:
        return lambda x, _: x
    if isinstance(expression, Operand):
        number = next(numbers)
        return lambda _, operands: operands[number]
    if not isinstance(expression, Call):
        constant = _constant(expression)
        return lambda _, __: constant
    operation = OPERATIONS.get(expression.name)
    if operation is None:
        raise ProblemError(f"the epilogue operation {expression.name} is unknown")
    parts = [_compose(part, numbers) for part in expression.arguments]
    named = dict(expression.named)
    return lambda x, operands: operation(*[part(x, operands) for part in parts], **named)


def _constant(expression: Word | float) -> Any:
    if not isinstance(expression, Word):
        return expression
    return None if expression.text == "none" else dtype_of(expression.text)
