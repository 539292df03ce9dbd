"""`epilogue_of`: the pointwise operators after a GEMM that the scheduler may fuse into it, as text.

`end_of_epilogue` is the node of the last of them.

The text is taken from the FX graph at lowering and is canonical: it does not depend on node names
or on the order of commutative arguments. It is a prediction; the scheduler decides
(torch/_inductor/scheduler.py, can_fuse). torch decomposes activations before lowering, and this
module recognizes their decompositions (``silu``, ``gelu``, ``gelu_tanh``).
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.fx import Node

from warmup.core.dtypes import dtype_name
from warmup.keys.gemm import NO_EPILOGUE, format_number

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
    """Return the last node of the epilogue of the GEMM *node*; None where there is no epilogue.

    A cast to a wider dtype at its end is left to the kernel that reads the result.
    """
    gemm = node.meta.get("val")
    if not isinstance(gemm, torch.Tensor):
        return None
    end = None
    for _, current in _steps_after(node, gemm):
        if current.meta["val"].dtype.itemsize <= gemm.dtype.itemsize:
            end = current
    return end


def _steps_after(node: Node, gemm: torch.Tensor) -> Iterator[tuple[str, Node]]:
    """Yield the text of each step behind *node*, which computes *gemm*, and the step's last node.

    The text is empty where the step leaves its values as they are, such as a view.
    """
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
    """Return the pointwise nodes from *start* up to the first node that all its users lead to.

    That node is last. None when users diverge and do not meet again, or one is not pointwise.
    """
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
    """Whether two sizes are equal, compared without adding a guard to the graph."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return str(left) == str(right)


def _text_of(node: Node, texts: dict[Node, str], gemm_dtype: torch.dtype) -> str:
    target = node.target
    first = texts.get(node.args[0]) if node.args and isinstance(node.args[0], Node) else None
    if first is not None and (target in _VIEWS or _is_opmath_cast(node, gemm_dtype)):
        return first
    name = _operator_name(target)
    arguments = [_argument(argument, texts) for argument in node.args]
    named = [
        f"{key}_{_argument(value, texts)}"
        for key, value in sorted(node.kwargs.items())
        if value is not None
    ]
    if name in _COMMUTATIVE:
        arguments = sorted(arguments[:2], key=_input_first) + arguments[2:]
    text = _recognize_activation(f"{name}({','.join(arguments + named)})")
    return text if len(text) <= MAX_EPILOGUE_LENGTH else f"~{_hash(text)}(x)"


def _is_opmath_cast(node: Node, gemm_dtype: torch.dtype) -> bool:
    """Whether *node* is a cast that decompositions put around low-precision math."""
    if node.target is not torch.ops.prims.convert_element_type.default:
        return False
    return node.meta["val"].dtype in (torch.float32, gemm_dtype)


def _argument(argument: Any, texts: dict[Node, str]) -> str:
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
        return "[" + ".".join(_argument(item, texts) for item in argument) + "]"
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
    first, *others = _split(rest[:-1])
    if first != _INPUT_TEXT or any(re.search(r"\bx\b", other) for other in others):
        return expression
    return f"{name}({','.join(others)})" if others else name


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]] if text else []


def _recognize_activation(text: str) -> str:
    """Return the activation that *text* is a decomposition of, else *text*."""
    for name, matches in _ACTIVATIONS:
        inner = matches(text)
        if inner is not None:
            return f"{name}({inner})"
    return text


def _arguments(text: str, name: str) -> list[str] | None:
    return _split(text[len(name) + 1 : -1]) if text.startswith(f"{name}(") else None


def _operands(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the two operands of the binary operation *name* in both orders, if *text* is one."""
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
