"""`region_of`: a GEMM with the operators around it as plain values; `module_of`: as a module.

A region contains what the scheduler may fuse into the GEMM or into its consumers: everything
computed from its result pointwise or by reduction, up to the next operator with a kernel of its
own; operators that compute an operand from fewer bytes, such as the dequantization of an int8
weight; and a second GEMM whose result meets the first one's, as in a gated MLP, since only one of
the two GEMMs can fuse the gate.
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
from warmup.inductor.gemm.sizes import bytes_of, hint_or_value, is_size, sizes_of, spec_of_node

MAX_REGION_STEPS: Final = 64
_PROLOGUE_STEPS: Final = 8
_PRODUCER_STEPS: Final = 16  # a norm over the operand's rows has about ten
_PROLOGUE_BYTES: Final = 1.1  # bytes read per byte written (scheduler.py, can_fuse with a prologue)
_OPERATOR_TEXT: Final = re.compile(r"(?:aten|prims)\.(?!__)[a-z_0-9]+\.(?!__)[a-zA-Z_0-9]+")

_FORMATS: Final = {
    str(memory_format).removeprefix("torch."): memory_format
    for memory_format in (torch.contiguous_format, torch.preserve_format, torch.channels_last)
}
_aten = torch.ops.aten
_SCALED_OP: Final = _aten._scaled_mm.default
_SCALE_ARGUMENTS: Final = slice(2, 4)  # positions among the arguments of _scaled_mm
# Their factors have 8 bits: nothing that computes them reads fewer bytes than it writes.
_GEMM_OPS_OF_8_BITS: Final = frozenset({_SCALED_OP, _aten._int_mm.default})
_GEMM_OPS: Final = _GEMM_OPS_OF_8_BITS | {
    *(_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default),
}
# Operators in generated kernels that torch tags neither as pointwise nor as reduction.
_POINTWISE_OPS: Final = frozenset(
    {
        *(_aten.relu.default, _aten.gelu.default, torch.ops.prims.convert_element_type.default),
        *(_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default),
        *(_aten.unsqueeze.default, _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims),
        *(_aten.permute.default, _aten.transpose.int, _aten.t.default, _aten.expand.default),
        *(_aten.slice.Tensor, _aten.select.int, _aten.clone.default, _aten.cat.default),
        *(_aten.constant_pad_nd.default, _aten.full.default),
    }
)
_PAIR_OPS: Final = frozenset({_aten.var_mean.correction})  # reductions with two results
_REDUCTION_OPS: Final = frozenset({_aten.var.correction, _aten._softmax.default})


class _NotPlainError(Exception):
    """A region contains something that plain values cannot describe."""


def region_of(gemm: Node, operands: Sequence[TensorSpec], *, has_epilogue: bool) -> Region | None:
    """Return the region around *gemm*; None if there is none or plain values cannot describe it.

    *operands* are the layouts in which the GEMM receives its tensor arguments, in order: inductor
    may choose other layouts than the graph has. A dynamic size is replaced by its hint.
    """
    if gemm.target not in _GEMM_OPS or not _is_tensor(gemm):
        return None
    prologue = set() if gemm.target in _GEMM_OPS_OF_8_BITS else _prologue(gemm)
    if not prologue and not has_epilogue:
        return None
    members = _members(gemm, prologue)
    if not all(spec_of_node(node) for node in members if node.target not in _PAIR_OPS):
        return None
    outputs = _outputs(members)
    laid_out = {
        node: spec
        for node, spec in zip(_tensors(gemm), operands, strict=False)
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
    if gemm.target not in _GEMM_OPS or not _is_tensor(gemm):
        return None
    order = {node: i for i, node in enumerate(gemm.graph.nodes)}
    producers = _producers(gemm)
    members = sorted({*producers, *_members(gemm, set())}, key=order.__getitem__)
    if not all(spec_of_node(node) for node in members if node.target not in _PAIR_OPS):
        return None
    # What else the graph keeps of the producers it keeps with padding and without.
    kept = producers - {_viewed(node) for node in _tensors(gemm)}
    outputs = [node for node in _outputs(members) if node not in kept]
    try:
        return _to_region(gemm, members, outputs or [gemm], {})
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


def _members(gemm: Node, prologue: set[Node]) -> list[Node]:
    """Return the nodes of the region, in graph order."""
    members = _members_with(gemm, prologue, has_pairs=True)
    if any(node.target in _PAIR_OPS or _pair_of(node) for node in _outputs(members)):
        return _members_with(gemm, prologue, has_pairs=False)  # one of two results is no output
    return members


def _members_with(gemm: Node, prologue: set[Node], *, has_pairs: bool) -> list[Node]:
    """Return the nodes of the region, with reductions that have two results or without."""
    order = {node: i for i, node in enumerate(gemm.graph.nodes)}
    after = _downstream(gemm)
    members = {gemm, *prologue}
    for node in sorted(after, key=order.__getitem__):
        if len(members) >= MAX_REGION_STEPS:
            break
        # A node that depends on a later GEMM runs in a later kernel.
        ready = all(other in members or other not in after for other in node.all_input_nodes)
        is_of_pair = node.target in _PAIR_OPS or _pair_of(node) is not None
        if ready and (has_pairs if is_of_pair else _is_generated(node)):
            members.add(node)
    return sorted(members | _siblings(gemm, members), key=order.__getitem__)


def _downstream(start: Node) -> set[Node]:
    nodes: set[Node] = set()
    pending = list(start.users)
    while pending:
        node = pending.pop()
        if node not in nodes:
            nodes.add(node)
            pending.extend(node.users)
    return nodes


def _prologue(gemm: Node) -> set[Node]:
    """Return the nodes that compute operands of *gemm* alone, each from fewer bytes."""
    prologue: set[Node] = set()
    for operand in _tensors(gemm):
        chain: set[Node] = set()
        pending = [operand]
        while pending and len(chain) <= _PROLOGUE_STEPS:
            node = pending.pop()
            if _is_pointwise(node) and all(user in chain or user is gemm for user in node.users):
                chain.add(node)
                pending.extend(node.all_input_nodes)
        inputs = {node for member in chain for node in member.all_input_nodes} - chain
        sources = [node for node in inputs if not is_size(node)]
        if chain and sum(map(bytes_of, sources)) <= _PROLOGUE_BYTES * bytes_of(operand):
            prologue |= chain
    return prologue


def _producers(gemm: Node) -> set[Node]:
    """Return the nearest nodes of generated kernels that compute the operands of *gemm*."""
    producers: set[Node] = set()
    pending = list(_tensors(gemm))
    while pending and len(producers) < _PRODUCER_STEPS:
        node = pending.pop(0)
        node = _pair_of(node) or node
        is_generated = _is_generated(node) or node.target in _PAIR_OPS
        if node not in producers and is_generated:
            producers.add(node)
            pending.extend(node.all_input_nodes)
    return producers


def _pair_of(node: Node) -> Node | None:
    """Return the reduction with two results of which *node* is one; None for any other node."""
    if node.target is not operator.getitem:
        return None
    source = node.args[0]
    return source if isinstance(source, Node) and source.target in _PAIR_OPS else None


def _viewed(node: Node) -> Node:
    """Return the node whose memory *node* is, as far as views tell."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
        node = node.all_input_nodes[0]
    return node


def _outputs(members: Sequence[Node]) -> list[Node]:
    """Return those of *members* whose results others use."""
    inside = set(members)
    return [
        node
        for node in members
        if any(user not in inside and not is_size(user) for user in node.users)
    ]


def _siblings(gemm: Node, members: set[Node]) -> set[Node]:
    """Return the other GEMMs whose results only *members* use, and the nodes in between.

    None of them depends on *gemm*: the search starts at inputs of members that are not members, and
    these do not depend on it.
    """
    siblings: set[Node] = set()
    inputs = {node for member in members for node in member.all_input_nodes} - members
    for start in inputs - set(gemm.all_input_nodes):
        chain: set[Node] = set()
        pending = [start]
        while pending and len(chain) <= _PROLOGUE_STEPS:
            node = pending.pop()
            if not all(user in members or user in chain for user in node.users):
                continue
            if node.target in _GEMM_OPS and _is_tensor(node):
                siblings |= {*chain, node}
            elif _is_pointwise(node):
                chain.add(node)
                pending.extend(node.all_input_nodes)
    return siblings


def _flops(node: Node) -> int:
    a = _tensors(node)[0 if node.target is _SCALED_OP else -2]
    return 2 * math.prod(sizes_of(node) or ()) * (sizes_of(a) or (0,))[-1]


def _is_generated(node: Node) -> bool:
    """Whether inductor computes *node* in a generated kernel."""
    target = node.target
    is_reduction = target in _REDUCTION_OPS or torch.Tag.reduction in getattr(target, "tags", ())
    return _is_pointwise(node) or (is_reduction and _is_tensor(node))


def _is_pointwise(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not _is_tensor(node):
        return False
    return torch.Tag.pointwise in target.tags or target in _POINTWISE_OPS


def _is_tensor(node: Node) -> bool:
    """Whether *node* computes one tensor."""
    return node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor)


def _to_region(
    gemm: Node, members: list[Node], outputs: list[Node], laid_out: dict[Node, TensorSpec]
) -> Region:
    inputs: dict[Node, TensorSpec] = {}
    operations = [node for node in members if _pair_of(node) is None]
    steps = {node: i for i, node in enumerate(operations)}

    def to_argument(argument: Any) -> Argument:
        argument = hint_or_value(argument)
        if isinstance(argument, Node):
            if argument in steps:
                return {"step": steps[argument]}
            if (pair := _pair_of(argument)) in steps:
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
            {name: to_argument(value) for name, value in node.kwargs.items()},
        )
        for node in operations
    )
    gemms = [gemm, *(node for node in members if node.target in _GEMM_OPS and node is not gemm)]
    return Region(
        inputs=_filled(inputs, gemms),
        steps=described,
        outputs=tuple(steps[node] for node in outputs),
        flops=tuple(map(_flops, gemms)),
    )


def _filled(inputs: Mapping[Node, TensorSpec], gemms: Sequence[Node]) -> tuple[TensorSpec, ...]:
    """Return the specs of *inputs*; what scales a factor of one of *gemms* is positive."""
    scaled = (node for node in gemms if node.target is _SCALED_OP)
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


def _tensors(gemm: Node) -> list[Node]:
    return [argument for argument in gemm.args if isinstance(argument, Node)]
