"""`describe`: the `GemmProblem` of a selection, from inductor's IR and the FX node being lowered.

Sizes, strides and dtypes come from the IR operands, because a lowering may select another GEMM than
its FX node names (mm_plus_mm falls back to two mm). Bias form, scalars and epilogue come from the
FX node, because inductor passes the bias of an addmm sometimes expanded and sometimes not.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sympy
import torch
from torch._inductor.ir import FlexibleLayout
from torch._inductor.virtualized import V
from torch.fx import Node
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from warmup.core.errors import ProblemError
from warmup.core.roofline import dtype_name
from warmup.keys.gemm import (
    CPU_LINEAR,
    NO_EPILOGUE,
    Dim,
    GemmProblem,
    Layout,
    bias_form,
    format_number,
    layout_of,
    split_arguments,
)

MAX_NODES: Final = 32
MATRIX_DIMS: Final = 2
MAX_EPILOGUE_STEPS: Final = 16
MAX_EPILOGUE_LENGTH: Final = 160
MAX_EPILOGUE: Final = 400

_aten = torch.ops.aten
# Pointwise operators without torch's tag for them.
_EPILOGUE_OPS: Final = {
    _aten.relu.default,
    _aten.gelu.default,
    torch.ops.prims.convert_element_type.default,
}
_VIEWS: Final = {
    _aten.view.default,
    _aten.reshape.default,
    _aten._unsafe_view.default,
    _aten.unsqueeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.squeeze.default,
}
_COMMUTATIVE: Final = {"add", "mul", "maximum", "minimum", "eq", "ne"}
_INPUT_TEXT: Final = "x"


def epilogue_of(node: Node) -> str:
    """Return the epilogue of the GEMM *node*: ``none`` or its steps, ``relu,mul(bf16[560,1280])``.

    The chain continues while all users of a value lead to a single pointwise value. It ends at a
    value with diverging users or with a user that is not pointwise. A step that reads its input
    more than once and is no known activation is nested text, in which ``x`` is the input.
    """
    gemm = node.meta.get("val")
    if not isinstance(gemm, torch.Tensor):
        return NO_EPILOGUE
    found = list(_steps_after(node, gemm))
    steps = [step for step, _ in found if step]
    out = (found[-1][1] if found else node).meta["val"].dtype
    if out != gemm.dtype:
        steps.append(f"to({dtype_name(out)})")
    text = ",".join(steps) or NO_EPILOGUE
    return text if len(text) <= MAX_EPILOGUE else f"~{_hash(text)}"


def end_of_epilogue(node: Node) -> Node | None:
    """Return the last node of the epilogue of the GEMM *node*, if any."""
    # A cast to a wider dtype at its end is left to the kernel that reads the result.
    gemm = node.meta.get("val")
    if not isinstance(gemm, torch.Tensor):
        return None
    end = None
    for _, current in _steps_after(node, gemm):
        if current.meta["val"].dtype.itemsize <= gemm.dtype.itemsize:
            end = current
    return end


def _steps_after(node: Node, gemm: torch.Tensor) -> Iterator[tuple[str, Node]]:
    # The text is empty where the step leaves its values as they are, such as a view.
    current, count = node, 0
    while count < MAX_EPILOGUE_STEPS and (nodes := _next_nodes(current, gemm.numel())) is not None:
        texts = {current: _INPUT_TEXT}
        for member in nodes:
            texts[member] = _text_of(member, texts, gemm.dtype)
        current = nodes[-1]
        step = "" if texts[current] == _INPUT_TEXT else _as_step(texts[current])
        count += bool(step)
        yield step, current


def _next_nodes(start: Node, numel: Any) -> list[Node] | None:
    """Return the pointwise nodes up to the first node that all users of *start* lead to."""
    pending = set(start.users)
    members: list[Node] = []
    while pending and len(members) < MAX_NODES:
        node = min(pending)  # graph order
        pending.discard(node)
        if not _is_fusible(node, numel):
            return None
        members.append(node)
        if not pending:
            return members
        pending.update(node.users)
    return None


def _is_fusible(node: Node, numel: Any) -> bool:
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor):
        return False
    target = node.target
    if target in _VIEWS:
        return _same(value.numel(), numel)
    if not isinstance(target, torch._ops.OpOverload):
        return False
    is_pointwise = torch.Tag.pointwise in target.tags or target in _EPILOGUE_OPS
    return is_pointwise and _same(value.numel(), numel)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return str(left) == str(right)


def _text_of(node: Node, texts: dict[Node, str], gemm_dtype: torch.dtype) -> str:
    target = node.target
    first = texts.get(node.args[0]) if node.args and isinstance(node.args[0], Node) else None
    if first is not None and (target in _VIEWS or _is_opmath_cast(node, gemm_dtype)):
        return first
    name = _operator_name(target)
    arguments = [_operand_text(argument, texts) for argument in node.args]
    named = [
        f"{key}_{_operand_text(value, texts)}"
        for key, value in sorted(node.kwargs.items())
        if value is not None
    ]
    if name in _COMMUTATIVE:
        arguments = sorted(arguments[:2], key=_input_first) + arguments[2:]
    text = _recognize_activation(f"{name}({','.join(arguments + named)})")
    return text if len(text) <= MAX_EPILOGUE_LENGTH else f"~{_hash(text)}(x)"


def _is_opmath_cast(node: Node, gemm_dtype: torch.dtype) -> bool:
    if node.target is not torch.ops.prims.convert_element_type.default:
        return False
    return node.meta["val"].dtype in (torch.float32, gemm_dtype)


def _operand_text(argument: Any, texts: dict[Node, str]) -> str:
    if isinstance(argument, Node):
        if argument in texts:
            return texts[argument]
        value = argument.meta.get("val")
        return _operand(value) if isinstance(value, torch.Tensor) else "s"
    if isinstance(argument, bool | int | float):
        return str(argument) if not math.isfinite(argument) else format_number(argument)
    if isinstance(argument, torch.dtype):
        return dtype_name(argument)
    if isinstance(argument, (list, tuple)):
        return "[" + ".".join(_operand_text(item, texts) for item in argument) + "]"
    if argument is None:
        return "none"
    text = str(argument)
    return text if text.isidentifier() else f"~{_hash(text)}"


def _operand(value: torch.Tensor) -> str:
    sizes = [str(size) if isinstance(size, int) else "s" for size in value.shape]
    while len(sizes) > 1 and sizes[0] == "1":
        sizes = sizes[1:]
    if len(sizes) > MATRIX_DIMS and "s" not in sizes and "1" not in sizes:
        # [batch, seqlen, width] beside a GEMM of batch * seqlen rows: the kernel sees two dims.
        sizes = [str(math.prod(map(int, sizes[:-1]))), sizes[-1]]
    return f"{dtype_name(value.dtype)}[{','.join(sizes)}]"


def _operator_name(target: Any) -> str:
    if isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, torch._ops.OpOverload):
        return target._opname
    return str(getattr(target, "__name__", "call"))


def _input_first(argument: str) -> tuple[bool, str]:
    return re.search(r"\bx\b", argument) is None, argument


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _as_step(expression: str) -> str:
    """Return ``mul(f32[8])`` for ``mul(x,f32[8])``, and nested expressions unchanged."""
    name, _, rest = expression.partition("(")
    first, *others = split_arguments(rest[:-1])
    if first != _INPUT_TEXT or any(re.search(r"\bx\b", other) for other in others):
        return expression
    return f"{name}({','.join(others)})" if others else name


def _recognize_activation(text: str) -> str:
    for name, matches in _ACTIVATIONS:
        inner = matches(text)
        if inner is not None:
            return f"{name}({inner})"
    return text


def _arguments(text: str, name: str) -> list[str] | None:
    return split_arguments(text[len(name) + 1 : -1]) if text.startswith(f"{name}(") else None


def _operands(text: str, name: str) -> Iterator[tuple[str, str]]:
    parts = _arguments(text, name)
    if parts and len(parts) == 2:  # noqa: PLR2004  binary
        yield parts[0], parts[1]
        yield parts[1], parts[0]


def _silu(text: str) -> str | None:
    """Match x * sigmoid(x) and x / (1 + exp(-x))."""
    for name, template in (("mul", "sigmoid({0})"), ("div", "add(exp(neg({0})),1)")):
        for inner, other in _operands(text, name):
            if other == template.format(inner):
                return inner
    return None


def _gelu(text: str) -> str | None:
    """Match (0.5 x) (1 + erf(x / sqrt 2))."""
    for half, rest in _operands(text, "mul"):
        scaled = _arguments(half, "mul")
        if scaled and scaled[1:] == ["0.5"] and rest == f"add(erf(mul({scaled[0]},0.707107)),1)":
            return scaled[0]
    return None


def _gelu_tanh(text: str) -> str | None:
    """Match (0.5 x) (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    for half, rest in _operands(text, "mul"):
        scaled = _arguments(half, "mul")
        tanh = _arguments(rest, "add")
        if not scaled or scaled[1:] != ["0.5"] or not tanh or tanh[1:] != ["1"]:
            continue
        if tanh[0].startswith("tanh(") and "0.044715" in tanh[0] and "0.797885" in tanh[0]:
            return scaled[0]
    return None


_ACTIVATIONS: Final = (("silu", _silu), ("gelu", _gelu), ("gelu_tanh", _gelu_tanh))


# vLLM 0.32.0 has it here; older releases one folder up.
_MODULES: Final = ("vllm.compilation.passes.inductor_pass", "vllm.compilation.inductor_pass")


def bounded_by_engine(ranges: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return *ranges* of symbols, that of the engine's size with its upper end."""
    # Unchanged outside of vLLM, and where inductor lowers no graph. The size is the graph's first
    # input that is a symbol (vLLM 0.32.0, ``sym_shape_indices`` of
    # compilation/piecewise_backend.py).
    largest = largest_size_of_engine()
    inputs: Any = getattr(V.graph, "graph_inputs", None)
    if largest is None or not isinstance(inputs, Mapping):
        return ranges
    symbol = next((each for each in inputs.values() if isinstance(each, sympy.Symbol)), None)
    if symbol not in ranges:
        return ranges
    return {**ranges, symbol: ValueRanges(ranges[symbol].lower, sympy.Integer(largest))}


def largest_size_of_engine() -> int | None:
    """Return the end of the range that vLLM compiles in this thread; None outside of vLLM."""
    # Source: vLLM 0.32.0, `get_pass_context` (compilation/passes/inductor_pass.py), whose
    # ``compile_range`` vLLM sets around each compile. Nothing of vLLM is imported.
    for name in _MODULES:
        context_of: Any = getattr(sys.modules.get(name), "get_pass_context", None)
        if context_of is None:
            continue
        try:
            context = context_of()
        except AssertionError:  # what vLLM raises while it compiles nothing
            return None
        end = getattr(getattr(context, "compile_range", None), "end", None)
        return end if isinstance(end, int) else None
    return None


_UNBOUNDED: Final = 2**62


def current_node() -> Node | None:
    node = getattr(V.graph, "current_node", None)
    return node if isinstance(node, Node) else None


@dataclass(frozen=True, slots=True)
class PostOp:
    """An operation that mkldnn fused into a library call, such as ``gelu`` with ``tanh``."""

    name: str
    scalars: tuple[float, ...] = ()
    algorithm: str = ""


def describe(
    name: str, inputs: list[Any], layout: Any, post_op: PostOp | None = None
) -> GemmProblem:
    """Return the GEMM problem of *inputs* (IR nodes) and the output *layout*.

    Raises ProblemError where a key cannot describe it, for example because of unbacked sizes.
    """
    try:
        return _describe(name, inputs, layout, post_op)
    except (AttributeError, IndexError, NotImplementedError, TypeError, ValueError) as error:
        raise ProblemError(f"{name}: {error}") from error


def _describe(name: str, inputs: list[Any], layout: Any, post_op: PostOp | None) -> GemmProblem:
    node = current_node()
    size = list(layout.size)
    first, second = _factors(name, inputs)
    dtype = first.get_dtype()
    k = first.get_size()[-1]
    batch = size[0] if len(size) > MATRIX_DIMS else None
    pairs = name == "mm_plus_mm"
    return GemmProblem(
        op=name,
        m=_dim(size[-2]),
        n=_dim(size[-1]),
        k=_dim(k),
        batch=None if batch is None else _dim(batch),
        dtype=dtype_name(dtype),
        dtype_b=dtype_name(second.get_dtype()),
        a=layout_of_operand(first),
        b=Layout("packed") if name in CPU_LINEAR else layout_of_operand(second),
        a2=layout_of_operand(inputs[-2]) if pairs else None,
        b2=layout_of_operand(inputs[-1]) if pairs else None,
        out=dtype_name(layout.dtype),
        bias=_bias(name, inputs, node, size),
        scale=_scale(inputs, node) if name == "scaled_mm" else None,
        accum="fast" if name == "scaled_mm" and _argument(node, "use_fast_accum") else None,
        alpha=_scalar(node, "alpha"),
        beta=_scalar(node, "beta"),
        fp32=fp32_precision(first.get_device().type) if dtype is torch.float32 else None,
        reduction="full" if reduces_in_full(dtype, first.get_device().type) else None,
        epilogue=_epilogue(name, node, inputs, post_op),
    )


def _factors(name: str, inputs: list[Any]) -> tuple[Any, Any]:
    if name in CPU_LINEAR:
        return inputs[0], inputs[1 if name == "linear_unary" else 2]
    if name == "scaled_mm":
        return inputs[0], inputs[1]
    return (inputs[-4], inputs[-3]) if name == "mm_plus_mm" else (inputs[-2], inputs[-1])


def _scale(inputs: list[Any], node: Node | None) -> str:
    words = []
    for scale in inputs[2 : len(inputs) - (_argument(node, "bias") is not None)]:
        sizes = ",".join(str(_dim(size)) for size in scale.get_size())
        words.append(f"{dtype_name(scale.get_dtype())}[{sizes}]")
    return ":".join(words)


def _argument(node: Node | None, name: str) -> Any:
    if node is None or not isinstance(node.target, torch._ops.OpOverload):
        return None
    named = zip(node.target._schema.arguments, node.args, strict=False)
    given = {argument.name: value for argument, value in named}
    return given.get(name, node.kwargs.get(name))


def _dim(size: Any) -> Dim:
    if isinstance(size, int):
        return Dim.of(size)
    if isinstance(size, torch.SymInt):
        size = size.node.expr
    return dim_of(size, V.graph.sizevars.shape_env)


def dim_of(size: Any, shapes: Any) -> Dim:
    """Return the constant or the range of the expression *size* under the ShapeEnv *shapes*."""
    # A range without an upper end has that of an engine which compiles for one.
    expression = sympy.sympify(size)
    if not expression.free_symbols:
        return Dim.of(int(expression))
    found = _range(expression, shapes.var_to_range)
    if found.high is None:
        return _range(expression, bounded_by_engine(shapes.var_to_range))
    return found


def _range(expression: Any, ranges: Any) -> Dim:
    bounds = bound_sympy(expression, ranges)
    low = int(bounds.lower) if isinstance(bounds.lower, sympy.Integer) else 0
    high = int(bounds.upper) if isinstance(bounds.upper, sympy.Integer) else _UNBOUNDED
    return Dim(max(low, 0), None if high >= _UNBOUNDED else high)


def layout_of_operand(operand: Any) -> Layout:
    return layout_of(list(operand.get_size()), strides_of(operand), _known_equal, _dim)


def strides_of(operand: Any) -> list[Any]:
    """Return the strides of *operand*, padded as inductor will (ir.py, _pad_strides)."""
    layout = operand.get_layout()
    if isinstance(layout, FlexibleLayout):
        return list(layout.get_fixed_layout_without_freezing().stride)
    return list(operand.get_stride())


def _known_equal(left: Any, right: Any) -> bool:
    return bool(V.graph.sizevars.statically_known_equals(left, right))


def _bias(name: str, inputs: list[Any], node: Node | None, out: list[Any]) -> str | None:
    if name == "scaled_mm":
        return "1d" if _argument(node, "bias") is not None else None
    if name in ("linear_unary", "linear_binary"):
        with_bias = 3 + (name == "linear_binary")
        return "1d" if len(inputs) == with_bias else None
    if name not in ("addmm", "baddbmm"):
        return None
    value = (
        node.args[0].meta.get("val")
        if node and node.args and isinstance(node.args[0], Node)
        else None
    )
    if isinstance(value, torch.Tensor):
        sizes, strides = list(value.shape), list(value.stride())
    else:
        sizes, strides = list(inputs[0].get_size()), list(inputs[0].get_stride())
    return bias_form(len(out), sizes, strides)


def _scalar(node: Node | None, name: str) -> float:
    value = node.kwargs.get(name, 1) if node is not None else 1
    if not isinstance(value, (int, float)):
        raise ProblemError(f"{name} is not a constant")
    return value


def fp32_precision(device_type: str) -> str:
    """Return the precision of float32 matmuls on this device: ``ieee``, ``tf32`` or ``bf16``."""
    backend = torch.backends.mkldnn if device_type == "cpu" else torch.backends.cuda
    precision = str(backend.matmul.fp32_precision)
    return "ieee" if precision == "none" else precision


def reduces_in_full(dtype: torch.dtype, device_type: str) -> bool:
    if device_type == "cpu":
        return False
    matmul = torch.backends.cuda.matmul
    if dtype is torch.bfloat16:
        return not matmul.allow_bf16_reduced_precision_reduction
    return dtype is torch.float16 and not matmul.allow_fp16_reduced_precision_reduction


def _epilogue(name: str, node: Node | None, inputs: list[Any], post_op: PostOp | None) -> str:
    later = epilogue_of(node) if node is not None else NO_EPILOGUE
    if post_op is None:
        return later
    words = [post_op.name]
    if post_op.algorithm not in ("", "none"):
        words.append(post_op.algorithm)
    arguments = [format_number(value) for value in post_op.scalars]
    if name == "linear_binary":
        other = inputs[1]
        sizes = ",".join(str(_dim(size)) for size in other.get_size())
        arguments.append(f"{dtype_name(other.get_dtype())}[{sizes}]")
    fused = "_".join(words) + (f"({','.join(arguments)})" if arguments else "")
    return fused if later == NO_EPILOGUE else f"{fused},{later}"
