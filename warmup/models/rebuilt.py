"""`RebuiltProblem`: a small module, made from a key alone, that asks inductor for that key."""

from __future__ import annotations

import contextlib
import itertools
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from warmup.core.buckets import Bucket
from warmup.core.errors import ProblemError
from warmup.core.roofline import item_bytes
from warmup.inductor.adapter import mark_range
from warmup.keys.gemm import (
    COVERED,
    CPU_LINEAR,
    INPUT,
    Call,
    Dim,
    Expression,
    GemmProblem,
    Layout,
    Operand,
    Word,
    operands_of,
    parse_epilogue,
)
from warmup.keys.grouped import OF_EACH_GROUP, GroupedProblem, Over, ends_of_groups
from warmup.keys.pad import ALIGNED_BYTES, PadProblem
from warmup.keys.registry import kind_of
from warmup.models.loading import DTYPES
from warmup.models.model_target import LoadedModel
from warmup.models.outputs import available_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltProblem:
    """A rebuilt module on its device, and the bucket whose inputs make it ask for the key.

    ``settings`` opens a context with the float precision that the key names, in which inductor
    leaves the op of the key as it is; the tolerance of ``dtype`` holds for the output.
    """

    model: LoadedModel
    bucket: Bucket
    settings: Callable[[], AbstractContextManager[None]]
    dtype: str


def rebuild(key: str, device: torch.device) -> RebuiltProblem:
    """Return a module that should ask for *key*, at the largest sizes: a compile shows it."""
    kind = kind_of(key)
    if kind.rebuild is None:
        raise ProblemError(
            f"a {kind.name} problem needs the model: "
            "run `warmup build --model ...` with this bucket"
        )
    kind.check(key)
    make: Callable[[str, torch.device], RebuiltProblem] = pkgutil.resolve_name(kind.rebuild)
    return make(key, device)


_NARROW_FLOATS: Final = {"f8_e4m3fn": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2}
_SCALE_TEXT: Final = re.compile(r"f32\[(?P<a>[0-9.,]*)\]:f32\[(?P<b>[0-9.,]*)\]")
_BIAS_DIMS: Final = {"scalar": "", "1d": "n", "2d": "mn", "3d": "bmn"}
_LETTERS: Final = "bmn"
_SMALL_INTEGERS: Final = 8
_MAX_STRIDE: Final = 2**62
_VIEWED_DIMS: Final = 3
_ONE: Final = Dim.of(1)
_MakeInputs = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True)
class OperandTensor:
    """A tensor to make, in elements; random floats are scaled, and positive if ``is_positive``."""

    sizes: tuple[Dim, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    scale: float = 1
    is_positive: bool = False

    @property
    def elements(self) -> int:
        spans = zip(self.sizes, self.strides, strict=True)
        return 1 + sum((size_of(dim) - 1) * stride for dim, stride in spans)

    def make(self, device: torch.device) -> torch.Tensor:
        try:
            if self.dtype.is_floating_point:
                flat = torch.randn(self.elements, device=device).mul_(self.scale)
                flat = flat.abs_().add_(self.scale / 2) if self.is_positive else flat
            else:
                flat = torch.randint(0, _SMALL_INTEGERS, (self.elements,), device=device)
            sizes = [size_of(dim) for dim in self.sizes]
            tensor = flat.to(self.dtype).as_strided(sizes, self.strides)
        except (OverflowError, RuntimeError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ProblemError(f"an operand cannot be made: {reason}") from error
        for position, dim in enumerate(self.sizes):
            if not dim.is_static:
                mark_range(tensor, position, dim.low, dim.high)
        return tensor


def gemm_tensors(problem: GemmProblem) -> dict[str, OperandTensor]:
    """Return the operands of the GEMM by name; ``b`` of a CPU linear is its weight."""
    is_scaled = problem.scale is not None
    if problem.dtype_b is not None and not is_scaled:
        raise ProblemError(f"the operands have two dtypes, {problem.dtype} and {problem.dtype_b}")
    m, n, k = problem.m, problem.n, problem.k
    dtype = _dtype_of(problem.dtype)
    scale = 1 / math.sqrt(max(size_of(k), 1))
    matrix = partial(_matrix, problem.batch, dtype)
    tensors = {"a": matrix(m, k, problem.a)}
    if is_scaled:  # 8 bits are too few for small values: the scales make the result of size 1
        dtype_b = _dtype_of(problem.dtype_b or problem.dtype)
        tensors["b"] = replace(matrix(k, n, problem.b), dtype=dtype_b)
        tensors |= _scale_tensors(problem, scale)
        if problem.bias is not None:
            tensors["bias"] = _dense([n], _dtype_of(problem.out))
        return tensors
    if problem.op in CPU_LINEAR:
        tensors["b"] = matrix(n, k, Layout("row"), scale=scale)
    else:
        tensors["b"] = matrix(k, n, problem.b, scale=scale)
    if problem.a2 is not None and problem.b2 is not None:
        tensors |= {"a2": matrix(m, k, problem.a2), "b2": matrix(k, n, problem.b2, scale=scale)}
    if problem.bias is not None:
        tensors["bias"] = _dense(_bias_sizes(problem, problem.bias), dtype)
    return tensors


def _scale_tensors(problem: GemmProblem, scale: float) -> dict[str, OperandTensor]:
    words = _SCALE_TEXT.fullmatch(problem.scale or "")
    if words is None:
        raise ProblemError(f"scale={problem.scale} cannot be rebuilt from a key")
    by_row = {"a": [problem.m, _ONE], "b": [_ONE, problem.n]}
    tensors = {}
    for name, sizes in by_row.items():
        known = {",".join(map(str, shape)): shape for shape in ([], [_ONE], [_ONE, _ONE], sizes)}
        shape = known.get(words[name])
        if shape is None:
            raise ProblemError(f"scale={problem.scale}: scales of blocks cannot be rebuilt")
        factor = scale if name == "b" else 1.0
        dense = _dense(shape, torch.float32)
        tensors[f"scale_{name}"] = replace(dense, scale=factor, is_positive=True)
    return tensors


def _result_view(problem: GemmProblem, steps: Sequence[Call]) -> tuple[Dim, ...] | None:
    """Return the three dims as which the epilogue *steps* read the result; None where its own two.

    A model calls a linear on [batch, seqlen, width] and adds [batch, 1, width]: the result of the
    matrix product is viewed with three dims, and a key has the third where one of the dims is 1.
    """
    n, m = problem.n, problem.m
    for operand in (operand for step in steps for operand in operands_of(step)):
        if problem.batch is not None or len(operand.sizes) != _VIEWED_DIMS:
            continue
        first, second, _ = operand.sizes
        if first is None and second == 1 and not m.is_static:
            return m, _ONE, n
        if first and m.is_static and not m.low % first:
            return Dim.of(first), Dim.of(m.low // first), n
    return None


def _bias_sizes(problem: GemmProblem, form: str) -> list[Dim]:
    letters = _BIAS_DIMS.get(form, form)
    named = {"b": problem.batch, "m": problem.m, "n": problem.n}
    if any(named.get(letter) is None for letter in letters):
        raise ProblemError(f"bias={form} cannot be rebuilt from a key")
    spread = _LETTERS[_LETTERS.index(letters[0]) :] if letters else ""
    return [(letter in letters and named[letter]) or _ONE for letter in spread]


def _operand_sizes(operand: Operand, out: Sequence[Dim]) -> list[Dim]:
    dynamic = {dim for dim in out if not dim.is_static}
    if None in operand.sizes and len(dynamic) != 1:
        raise ProblemError("an operand of the epilogue has a size that the key does not name")
    sizes = [next(iter(dynamic)) if size is None else Dim.of(size) for size in operand.sizes]
    pairs = zip(reversed(sizes), reversed(out), strict=False)
    if len(sizes) <= len(out) and all(size in (out_size, _ONE) for size, out_size in pairs):
        return sizes
    # The key has the operand of a batched GEMM as the kernel sees it, with two dims.
    if math.prod(map(size_of, sizes)) == math.prod(map(size_of, out)):
        return list(out)
    raise ProblemError("an operand of the epilogue has other dims than the GEMM")


def _dense(sizes: Sequence[Dim], dtype: torch.dtype) -> OperandTensor:
    strides = [math.prod(size_of(dim) for dim in sizes[i + 1 :]) for i in range(len(sizes))]
    return OperandTensor(tuple(sizes), tuple(strides), dtype)


def _matrix(
    batch: Dim | None, dtype: torch.dtype, rows: Dim, cols: Dim, layout: Layout, *, scale: float = 1
) -> OperandTensor:
    row_count, col_count = size_of(rows), size_of(cols)
    if layout.order == "row":
        strides = (col_count if layout.leading is None else _fixed(layout.leading), 1)
    elif layout.order == "col":
        strides = (1, row_count if layout.leading is None else _fixed(layout.leading))
    else:
        raise ProblemError(f"the layout {layout} cannot be rebuilt from a key")
    if batch is None:
        return OperandTensor((rows, cols), strides, dtype, scale)
    apart = row_count * col_count if layout.batch is None else _fixed(layout.batch)
    return OperandTensor((batch, rows, cols), (apart, *strides), dtype, scale)


def size_of(dim: Dim) -> int:
    """Return the size of a static dim, or the largest of a range; a ProblemError without an end."""
    if dim.high is None:
        raise ProblemError(
            f"the range {dim} has no upper end, so that it has no largest size to measure; "
            "mark the dim with a maximum, or build with the model"
        )
    return dim.high


def _fixed(dim: Dim) -> int:
    if not dim.is_static:
        raise ProblemError(f"the stride {dim} is dynamic")
    if dim.low > _MAX_STRIDE:
        raise ProblemError(f"the stride {dim} is out of range")
    return dim.low


def _dtype_of(name: str) -> torch.dtype:
    dtype = DTYPES.get(name) or _NARROW_FLOATS.get(name)
    if dtype is None:
        raise ProblemError(f"no random tensor has the dtype {name}")
    return dtype


def _check_memory(tensors: Iterable[OperandTensor], device: torch.device) -> None:
    needed = sum(tensor.elements * max(tensor.dtype.itemsize, 4) for tensor in tensors)
    if needed > (available := available_bytes(device)):
        raise ProblemError(
            f"the operands take {needed / 2**30:.0f} GiB, {device} has {available / 2**30:.0f} GiB"
        )


def _rebuilt(
    module: nn.Module,
    make_inputs: _MakeInputs,
    dims: Mapping[str, Dim | None],
    dtype: str,
    settings: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> RebuiltProblem:
    sizes = tuple((name, size_of(dim)) for name, dim in dims.items() if dim is not None)
    model = LoadedModel(module.eval(), make_inputs, "rebuilt")
    return RebuiltProblem(model=model, bucket=Bucket(sizes), settings=settings, dtype=dtype)


def _dims_of(problem: GemmProblem | PadProblem) -> dict[str, Dim | None]:
    return {"batch": problem.batch, "m": problem.m, "n": problem.n, "k": problem.k}


def _maker(tensors: Iterable[OperandTensor], device: torch.device) -> _MakeInputs:
    tensors = tuple(tensors)
    _check_memory(tensors, device)
    return lambda **_sizes: tuple(tensor.make(device) for tensor in tensors)


def rebuild_grouped(key: str, device: torch.device) -> RebuiltProblem:
    problem = GroupedProblem.of_key(key)
    if problem.out != problem.dtype:
        raise ProblemError(f"a result in {problem.out} of factors in {problem.dtype} is not made")
    m, n, k = (Dim.of(size) for size in (problem.m, problem.n, problem.k))
    groups, of_each = Dim.of(problem.groups), OF_EACH_GROUP[problem.over]
    batch_a, batch_b = (groups if name in of_each else None for name in ("a", "b"))
    dtype, scale = _dtype_of(problem.dtype), 1 / math.sqrt(max(problem.k, 1))
    a = _matrix(batch_a, dtype, m, k, problem.a)
    make_factors = _maker((a, _matrix(batch_b, dtype, k, n, problem.b, scale=scale)), device)
    ends = ends_for(problem)

    def make_inputs(**_sizes: int) -> tuple[torch.Tensor, ...]:
        offsets = torch.tensor(ends, dtype=torch.int32, device=device)
        return (*make_factors(), offsets) if ends else make_factors()

    dims = {"groups": groups, "m": m, "n": n, "k": k}
    return _rebuilt(_GroupedModule(), make_inputs, dims, problem.dtype)


def ends_for(problem: GroupedProblem) -> Sequence[int]:
    """Return where the groups of *problem*, about equal and aligned, end; empty without groups."""
    if problem.over is Over.NOTHING:
        return ()
    if problem.over is Over.M:
        return ends_of_groups(problem.m, problem.groups)
    size = {Over.N: problem.n, Over.K: problem.k}[problem.over]
    unit = ALIGNED_BYTES // item_bytes(problem.dtype)
    inner = [size * group // problem.groups // unit * unit for group in range(1, problem.groups)]
    return (*inner, size)


class _GroupedModule(nn.Module):
    """The products of two factors whose groups end at the third argument, if there is one."""

    def forward(self, a: Any, b: Any, ends: torch.Tensor | None = None) -> torch.Tensor:
        return torch._grouped_mm(a, b, ends)  # noqa: SLF001  its name in torch 2.11


_REDUCTION_SWITCHES: Final = {
    "bf16": "allow_bf16_reduced_precision_reduction",
    "f16": "allow_fp16_reduced_precision_reduction",
}


# Inductor reads torch's one setting for all backends while it lowers (select_algorithm.py), which
# is an error of torch where a backend's own setting says otherwise. So both are set.
_OF_ALL_BACKENDS: Final = {"ieee": "highest", "tf32": "high", "bf16": "medium"}


@contextlib.contextmanager
def precision_of(problem: GemmProblem, device: torch.device) -> Iterator[None]:
    """Compute with the precision of *problem* inside; a ProblemError where torch has none such."""
    with contextlib.ExitStack() as settings:
        if problem.fp32 is not None:
            settings.enter_context(_float32(problem.fp32, device))
        switch = _REDUCTION_SWITCHES.get(problem.dtype)
        if device.type != "cpu" and switch is not None:
            matmul: Any = torch.backends.cuda.matmul
            settings.callback(setattr, matmul, switch, getattr(matmul, switch))
            setattr(matmul, switch, problem.reduction is None)
        yield


@contextlib.contextmanager
def _float32(precision: str, device: torch.device) -> Iterator[None]:
    backends: Any = torch.backends
    each = backends.mkldnn.matmul, backends.cuda.matmul
    matmul = each[device.type != "cpu"]
    if (precision, matmul.fp32_precision) == ("ieee", "none"):
        yield
        return
    unknown = ProblemError(f"this torch does not know fp32={precision}")
    if precision not in _OF_ALL_BACKENDS:
        raise unknown
    before = [backend.fp32_precision for backend in each]
    try:
        of_all = torch.get_float32_matmul_precision()
    except RuntimeError:  # the caller set one backend's alone
        of_all = "highest"
    torch.set_float32_matmul_precision(_OF_ALL_BACKENDS[precision])
    try:
        if matmul.fp32_precision != precision:
            raise unknown
        yield
    finally:
        torch.set_float32_matmul_precision(of_all)
        for backend, value in zip(each, before, strict=True):
            backend.fp32_precision = value


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
    **{
        name: getattr(nn.functional, name)
        for name in ("gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "silu")
    },
    **dict.fromkeys(("convert_element_type", "to"), lambda x, dtype: x.to(dtype)),
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "swish": nn.functional.silu,
}
_NARROWEST: Final = "bf16"  # of what an epilogue makes of 8 bits: the key may not spell it
_EpilogueStep = Callable[[Any, Sequence[torch.Tensor]], Any]


def rebuild_gemm(key: str, device: torch.device) -> RebuiltProblem:
    problem = GemmProblem.of_key(key)
    if problem.op not in COVERED:
        raise ProblemError(f"the op {problem.op} cannot be rebuilt from a key")
    if problem.op in CPU_LINEAR and device.type != "cpu":
        raise ProblemError(f"the op {problem.op} exists on the CPU only")
    steps = parse_epilogue(problem.epilogue)
    sizes = (problem.batch, problem.m, problem.n)
    out = _result_view(problem, steps) or [dim for dim in sizes if dim is not None]
    operands = (operand for step in steps for operand in operands_of(step))
    tensors = gemm_tensors(problem)
    tensors |= {  # the operands of the epilogue, by number
        str(number): _dense(_operand_sizes(operand, out), _dtype_of(operand.dtype))
        for number, operand in enumerate(operands)
    }
    _check_memory(tensors.values(), device)
    constant = None
    if device.type == "cpu" and problem.op in (*CPU_LINEAR, "mm", "addmm"):
        constant = tensors.pop("b").make(device)  # only constant weights give inductor a choice
    module = _GemmModule(problem, tuple(tensors), steps, constant)
    # The dtype that bounds how exact the result is.
    result = problem.out if problem.op == "scaled_mm" else problem.dtype
    dtype = _NARROWEST if item_bytes(result) == 1 else result
    settings = partial(_settings_of, problem, device)
    return _rebuilt(module, _maker(tensors.values(), device), _dims_of(problem), dtype, settings)


@contextlib.contextmanager
def _settings_of(problem: GemmProblem, device: torch.device) -> Iterator[None]:
    from warmup.inductor.options import mm_unfolded

    unfolded = mm_unfolded() if problem.op == "mm" else contextlib.nullcontext()
    with precision_of(problem, device), unfolded:
        yield


class _GemmModule(nn.Module):
    def __init__(
        self,
        problem: GemmProblem,
        names: tuple[str, ...],
        steps: tuple[Call, ...] = (),
        constant: torch.Tensor | None = None,
        free: str = "",
    ) -> None:
        super().__init__()
        numbers = itertools.count()
        view = _result_view(problem, steps)
        self.names, self.free = names, free
        self.gemm = _gemm(problem)
        self.view = None if view is None else [d.low if d.is_static else -1 for d in view]
        self.steps = [_compose(step, numbers) for step in steps]
        self.weight = None if constant is None else nn.Parameter(constant, requires_grad=False)

    def forward(self, *tensors: torch.Tensor) -> Any:
        named = dict(zip(self.names, tensors, strict=True))
        if self.weight is not None:
            named["b"] = self.weight
        named |= {name: -named[name] for name in self.free}
        value = self.gemm(named)
        value = value if self.view is None else value.view(self.view)
        operands = [tensor for name, tensor in named.items() if name.isdigit()]
        for step in self.steps:
            value = step(value, operands)
        return value


def _gemm(problem: GemmProblem) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor]:
    if problem.op == "scaled_mm":
        how: dict[str, Any] = {"out_dtype": _dtype_of(problem.out)}
        how["use_fast_accum"] = problem.accum is not None
        scaled: Callable[..., torch.Tensor] = torch._scaled_mm  # noqa: SLF001  its only name
        return lambda t: scaled(*map(t.get, ("a", "b", "scale_a", "scale_b", "bias")), **how)
    if problem.op == "int_mm":
        return lambda t: torch._int_mm(t["a"], t["b"])  # noqa: SLF001  its only name
    dtypes: dict[str, Any] = {}
    if problem.out != problem.dtype:
        dtypes["out_dtype"] = _dtype_of(problem.out)
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


def _compose(expression: Expression, numbers: Iterator[int]) -> _EpilogueStep:
    if expression == INPUT:
        return lambda x, _: x
    if isinstance(expression, Operand):
        number = next(numbers)
        return lambda _, operands: operands[number]
    if not isinstance(expression, Call):
        constant: Any = expression
        if isinstance(expression, Word):
            constant = None if expression.text == "none" else _dtype_of(expression.text)
        return lambda _, __: constant
    operation = OPERATIONS.get(expression.name)
    if operation is None:
        raise ProblemError(f"the epilogue operation {expression.name} is unknown")
    parts = [_compose(part, numbers) for part in expression.arguments]
    named = dict(expression.named)
    return lambda x, operands: operation(*[part(x, operands) for part in parts], **named)


def rebuild_pad(key: str, device: torch.device) -> RebuiltProblem:
    problem = PadProblem.of_key(key)
    module, tensors = make_pad_module(problem)
    settings = partial(precision_of, _gemm_of(problem), device)
    make_inputs = _maker(tensors.values(), device)
    return _rebuilt(module, make_inputs, _dims_of(problem), problem.dtype, settings)


def _gemm_of(problem: PadProblem) -> GemmProblem:
    names = ("op", "batch", "m", "n", "k", "dtype", "a", "b", "bias", "fp32")
    return GemmProblem(out=problem.dtype, **{name: getattr(problem, name) for name in names})


def make_pad_module(problem: PadProblem) -> tuple[nn.Module, Mapping[str, OperandTensor]]:
    """Return the module of *problem* and its operands; free ones are made before the product."""
    gemm = _gemm_of(problem)
    tensors = gemm_tensors(gemm)
    return _GemmModule(gemm, tuple(tensors), free=problem.free).eval(), tensors
