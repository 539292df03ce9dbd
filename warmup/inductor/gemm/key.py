"""`describe`: the `GemmProblem` of a selection, from inductor's IR and the FX node being lowered.

Sizes, strides and dtypes come from the IR operands, because a lowering may select another GEMM than
its FX node names (mm_plus_mm falls back to two mm). Bias form, scalars and epilogue come from the
FX node, because inductor passes the bias of an addmm sometimes expanded and sometimes not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import sympy
import torch
from torch._inductor.ir import FlexibleLayout
from torch._inductor.virtualized import V
from torch.fx import Node
from torch.utils._sympy.value_ranges import bound_sympy

from warmup.core.dtypes import dtype_name
from warmup.core.errors import ProblemError
from warmup.inductor.engine_ranges import bounded_by_engine
from warmup.inductor.gemm.epilogues import MATRIX_DIMS, epilogue_of
from warmup.keys.gemm import CPU_LINEAR, NO_EPILOGUE, Dim, GemmProblem, Layout, format_number
from warmup.keys.strides import bias_form, layout_of

_aten = torch.ops.aten
_UNBOUNDED: Final = 2**62


def current_node() -> Node | None:
    """Return the FX node that this thread is lowering, None outside a lowering."""
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

    Raises:
        ProblemError: a key cannot describe the problem, for example because of unbacked sizes.
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
        fast_accum=name == "scaled_mm" and bool(_argument(node, "use_fast_accum")),
        alpha=_scalar(node, "alpha"),
        beta=_scalar(node, "beta"),
        fp32=fp32_precision(first.get_device().type) if dtype is torch.float32 else None,
        full_reduction=_reduces_in_full(dtype, first.get_device().type),
        epilogue=_epilogue(name, node, inputs, post_op),
    )


def _factors(name: str, inputs: list[Any]) -> tuple[Any, Any]:
    """Return the two factors of the GEMM; for mm_plus_mm, those of the first GEMM."""
    if name in CPU_LINEAR:
        return inputs[0], inputs[1 if name == "linear_unary" else 2]
    if name == "scaled_mm":
        return inputs[0], inputs[1]
    return (inputs[-4], inputs[-3]) if name == "mm_plus_mm" else (inputs[-2], inputs[-1])


def _scale(inputs: list[Any], node: Node | None) -> str:
    """Return the dtype and sizes of each scale, which holds one value per tensor, row or block."""
    words = []
    for scale in inputs[2 : len(inputs) - (_argument(node, "bias") is not None)]:
        sizes = ",".join(str(_dim(size)) for size in scale.get_size())
        words.append(f"{dtype_name(scale.get_dtype())}[{sizes}]")
    return ":".join(words)


def _argument(node: Node | None, name: str) -> Any:
    """Return the argument *name* of the operator that *node* calls, None when not given."""
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
    """Return the constant or the range of the expression *size* under the ShapeEnv *shapes*.

    A size without an upper end has that of the engine's range, where an engine compiles for one.
    """
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
    """Return how the matrices of *operand*, a buffer of inductor, lie in memory."""
    return layout_of(list(operand.get_size()), strides_of(operand), _known_equal, _dim)


def strides_of(operand: Any) -> list[Any]:
    """Return the strides that *operand* has, or will have once its layout is fixed.

    A flexible layout gets padded strides when inductor fixes it (ir.py, _pad_strides), which can
    happen before or after this call, depending on the other nodes.
    """
    layout = operand.get_layout()
    if isinstance(layout, FlexibleLayout):
        return list(layout.get_fixed_layout_without_freezing().stride)
    return list(operand.get_stride())


def _known_equal(left: Any, right: Any) -> bool:
    """Whether two sizes are known to be equal; adds no guard."""
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


def _reduces_in_full(dtype: torch.dtype, device_type: str) -> bool:
    """Whether reduced-precision reductions, torch's default on GPUs, are switched off."""
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
