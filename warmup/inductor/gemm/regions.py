"""`region_of`: a GEMM with the operators around it as plain values; `module_of`: as a module.

Which nodes belong to a region, `warmup.inductor.gemm.region_members` says.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch.fx import Graph, GraphModule, Node

from warmup.core.trial import Argument, Fill, Region, Step, TensorSpec
from warmup.inductor.gemm.region_members import (
    GEMM_OPS,
    GEMM_OPS_OF_8_BITS,
    PAIR_OPS,
    SCALED_OP,
    is_reduction,
    is_tensor,
    members_of,
    outputs_of,
    pair_of,
    producers_of,
    prologue_of,
    tensors_of,
    viewed_by,
)
from warmup.inductor.gemm.sizes import hint_or_value, sizes_of, spec_of_node

_OPERATOR_TEXT: Final = re.compile(r"(?:aten|prims)\.(?!__)[a-z_0-9]+\.(?!__)[a-zA-Z_0-9]+")

_FORMATS: Final = {
    str(memory_format).removeprefix("torch."): memory_format
    for memory_format in (torch.contiguous_format, torch.preserve_format, torch.channels_last)
}
_SCALE_ARGUMENTS: Final = slice(2, 4)  # positions among the arguments of _scaled_mm


class _NotPlainError(Exception):
    """A region contains something that plain values cannot describe."""


def region_of(gemm: Node, operands: Sequence[TensorSpec], *, has_epilogue: bool) -> Region | None:
    """Return the region around *gemm*; None if there is none or plain values cannot describe it.

    *operands* are the layouts in which the GEMM receives its tensor arguments, in order: inductor
    may choose other layouts than the graph has. A dynamic size is replaced by its hint.
    """
    if gemm.target not in GEMM_OPS or not is_tensor(gemm):
        return None
    prologue = set() if gemm.target in GEMM_OPS_OF_8_BITS else prologue_of(gemm)
    if not prologue and not has_epilogue:
        return None
    members = members_of(gemm, prologue)
    if not all(spec_of_node(node) for node in members if node.target not in PAIR_OPS):
        return None
    outputs = outputs_of(members)
    laid_out = {
        node: spec
        for node, spec in zip(tensors_of(gemm), operands, strict=False)
        if node not in members and spec.sizes == sizes_of(node)  # a bias is expanded
    }
    try:
        return _to_region(gemm, members, outputs or [gemm], laid_out)
    except _NotPlainError:
        return None


def whole_region_of(gemm: Node) -> Region | None:
    """Return *gemm* with what makes its operands and what follows; None if that is no plain value.

    Unlike `region_of` it is never only a part: operations that compute operands belong to it
    whatever they read, since the padding of an operand is fused into them. Operands have the
    layouts of the graph. A dynamic size is replaced by its hint.
    """
    return _with_producers(gemm) if gemm.target in GEMM_OPS and is_tensor(gemm) else None


def region_of_reduction(reduction: Node) -> Region | None:
    """Return *reduction* with what makes its operand and what follows; None if no plain value.

    Operands have the layouts of the graph, and a dynamic size is replaced by its hint.
    """
    return _with_producers(reduction) if is_reduction(reduction) else None


def _with_producers(root: Node) -> Region | None:
    order = {node: i for i, node in enumerate(root.graph.nodes)}
    producers = producers_of(root)
    members = sorted({*producers, *members_of(root, set())}, key=order.__getitem__)
    if not all(spec_of_node(node) for node in members if node.target not in PAIR_OPS):
        return None
    # What else the graph keeps of the producers it keeps whatever is decided.
    kept = producers - {viewed_by(node) for node in tensors_of(root)}
    outputs = [node for node in outputs_of(members) if node not in kept] or [root]
    if any(node.target in PAIR_OPS or pair_of(node) for node in outputs):
        return None  # one of two results is no output
    try:
        return _to_region(root, members, outputs, {})
    except _NotPlainError:
        return None


def module_of(region: Region, device: torch.device, wide: torch.dtype | None = None) -> GraphModule:
    """Return *region* as a module that takes its inputs and returns a tuple of its outputs.

    With *wide*, every cast to a floating dtype is a cast to *wide*.
    """

    def dtype_of(name: str) -> torch.dtype:
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype), name
        return wide if wide is not None and dtype.is_floating_point else dtype

    graph = Graph()
    inputs = [graph.placeholder(f"input_{i}") for i in range(len(region.inputs))]
    nodes: list[Node] = []

    def from_argument(argument: Argument) -> Any:
        if isinstance(argument, list | tuple):
            return [from_argument(item) for item in argument]
        if not isinstance(argument, dict):
            return argument
        ((kind, value),) = argument.items()
        resolve: dict[str, Callable[[Any], Any]] = {
            "step": nodes.__getitem__,
            "item": lambda item: graph.call_function(operator.getitem, (nodes[item[0]], item[1])),
            "input": inputs.__getitem__,
            "dtype": dtype_of,
            "memory_format": _FORMATS.__getitem__,
            "device": lambda _: device,
        }
        return resolve[kind](value)

    for step in region.steps:
        if _OPERATOR_TEXT.fullmatch(step.target) is None:
            raise ValueError(f"{step.target!r} is not an operator of torch")
        namespace, name, overload = step.target.split(".")
        called = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        kwargs = {name: from_argument(value) for name, value in step.kwargs.items()}
        args = tuple(map(from_argument, step.args))
        nodes.append(graph.call_function(called, args, kwargs))
    graph.output(tuple(nodes[i] for i in region.outputs))
    return GraphModule(torch.nn.Module(), graph)


def _flops(node: Node) -> int:
    a = tensors_of(node)[0 if node.target is SCALED_OP else -2]
    return 2 * math.prod(sizes_of(node) or ()) * (sizes_of(a) or (0,))[-1]


def _to_region(
    root: Node, members: list[Node], outputs: list[Node], laid_out: dict[Node, TensorSpec]
) -> Region:
    inputs: dict[Node, TensorSpec] = {}
    operations = [node for node in members if pair_of(node) is None]
    steps = {node: i for i, node in enumerate(operations)}

    def to_argument(argument: Any) -> Argument:
        argument = hint_or_value(argument)
        if isinstance(argument, Node):
            if argument in steps:
                return {"step": steps[argument]}
            if (pair := pair_of(argument)) in steps:
                return {"item": [steps[pair], argument.args[1]]}
            spec = inputs.get(argument) or laid_out.get(argument) or spec_of_node(argument)
            if spec is None:
                raise _NotPlainError
            inputs[argument] = spec
            return {"input": list(inputs).index(argument)}
        if isinstance(argument, list | tuple):
            return [to_argument(item) for item in argument]
        return _plain(argument)

    described = tuple(
        Step(
            _name(node),
            tuple(map(to_argument, node.args)),
            {
                name: to_argument(value)
                for name, value in node.kwargs.items()
                if value is not torch.strided  # the layout that every tensor here has
            },
        )
        for node in operations
    )
    gemms = [root] if root.target in GEMM_OPS else []
    gemms += (node for node in members if node.target in GEMM_OPS and node is not root)
    return Region(
        inputs=_filled(inputs, gemms),
        steps=described,
        outputs=tuple(steps[node] for node in outputs),
        flops=tuple(map(_flops, gemms)),
    )


def _filled(inputs: Mapping[Node, TensorSpec], gemms: Sequence[Node]) -> tuple[TensorSpec, ...]:
    """Return the specs of *inputs*; what scales a factor of one of *gemms* is positive."""
    scaled = (node for node in gemms if node.target is SCALED_OP)
    scales = {argument for node in scaled for argument in node.args[_SCALE_ARGUMENTS]}
    return tuple(
        replace(spec, fill=Fill.POSITIVE) if node in scales else spec
        for node, spec in inputs.items()
    )


def _plain(argument: Any) -> Argument:
    """Return *argument*, which is no node, as a plain value."""
    if isinstance(argument, torch.dtype):
        return {"dtype": str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.memory_format) and argument in _FORMATS.values():
        return {"memory_format": str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.device):
        return {"device": True}
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    raise _NotPlainError


def _name(node: Node) -> str:
    name = str(node.target)
    if _OPERATOR_TEXT.fullmatch(name) is None:
        raise _NotPlainError
    return name
