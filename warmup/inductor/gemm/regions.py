"""`region_of`: a GEMM with the operators around it as plain values; `module_of`: as a module.

Which nodes belong to a region, `warmup.inductor.gemm.regions` says.
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

# Sizes of FX nodes in a graph that inductor is lowering, with dynamic sizes replaced by hints.


def hint_or_value(argument: Any) -> Any:
    """Return the hint of a symbol or of a node that is a size; any other argument unchanged."""
    if isinstance(argument, Node) and is_size(argument):
        argument = argument.meta["val"]
    is_symbol = isinstance(argument, torch.SymInt) and argument.node.has_hint()
    return int(argument.node.hint) if is_symbol else argument


def is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), int | torch.SymInt)


def sizes_of(node: Node) -> tuple[int, ...] | None:
    """Return the sizes of *node*; None if a size has no hint or *node* is no tensor."""
    value = node.meta.get("val")
    return _hints(value.shape) if isinstance(value, torch.Tensor) else None


def spec_of_node(node: Node) -> TensorSpec | None:
    """Return the layout of *node*; None if a size has no hint or *node* is no strided tensor."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    sizes, strides = _hints(value.shape), _hints(value.stride())
    if sizes is None or strides is None:
        return None
    return TensorSpec(sizes, strides, 0, str(value.dtype).removeprefix("torch."))


def bytes_of(node: Node) -> float:
    """Return the bytes of *node*; infinite if they are not known."""
    sizes = sizes_of(node)
    return math.inf if sizes is None else math.prod(sizes) * node.meta["val"].itemsize


def _hints(sizes: Any) -> tuple[int, ...] | None:
    hints = tuple(map(hint_or_value, sizes))
    return hints if all(isinstance(size, int) for size in hints) else None


_MAX_STEPS: Final = 64
_PROLOGUE_STEPS: Final = 8
_PRODUCER_STEPS: Final = 16  # a norm over the operand's rows has about ten
_GATE_STEPS: Final = 24  # between the two GEMMs of a gate: a GELU by tanh has twelve
_PROLOGUE_BYTES: Final = 1.1  # bytes read per byte written (scheduler.py, can_fuse with a prologue)
_aten = torch.ops.aten
SCALED_OP: Final = _aten._scaled_mm.default
# Their factors have 8 bits: nothing that computes them reads fewer bytes than it writes.
GEMM_OPS_OF_8_BITS: Final = frozenset({SCALED_OP, _aten._int_mm.default})
GEMM_OPS: Final = GEMM_OPS_OF_8_BITS | {
    *(_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default)
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
PAIR_OPS: Final = frozenset({_aten.var_mean.correction})  # reductions with two results
_REDUCTION_OPS: Final = frozenset({_aten.var.correction, _aten._softmax.default})


def members_of(gemm: Node, prologue: set[Node]) -> list[Node]:
    """Return the nodes of the region around *gemm*, in graph order, with its *prologue*."""
    members = _members_with(gemm, prologue, has_pairs=True)
    if any(node.target in PAIR_OPS or pair_of(node) for node in outputs_of(members)):
        return _members_with(gemm, prologue, has_pairs=False)  # one of two results is no output
    return members


def prologue_of(gemm: Node) -> set[Node]:
    """Return the nodes that compute operands of *gemm* alone, each from fewer bytes."""
    # What follows a reduction pointwise is none of them: it is computed by the reduction's kernel.
    prologue: set[Node] = set()
    for operand in tensors_of(gemm):
        chain: set[Node] = set()
        pending = [operand]
        while pending and len(chain) <= _PROLOGUE_STEPS:
            node = pending.pop()
            if _is_pointwise(node) and all(user in chain or user is gemm for user in node.users):
                chain.add(node)
                pending.extend(node.all_input_nodes)
        inputs = {node for member in chain for node in member.all_input_nodes} - chain
        sources = [node for node in inputs if not is_size(node)]
        if any(is_reduction(source) for source in sources):
            continue
        if chain and sum(map(bytes_of, sources)) <= _PROLOGUE_BYTES * bytes_of(operand):
            prologue |= chain
    return prologue


def producers_of(gemm: Node) -> set[Node]:
    """Return the nearest nodes of generated kernels that compute the operands of *gemm*."""
    producers: set[Node] = set()
    pending = list(tensors_of(gemm))
    while pending and len(producers) < _PRODUCER_STEPS:
        node = pending.pop(0)
        node = pair_of(node) or node
        is_generated = _is_generated(node) or node.target in PAIR_OPS
        if node not in producers and is_generated:
            producers.add(node)
            pending.extend(node.all_input_nodes)
    return producers


def outputs_of(members: Sequence[Node]) -> list[Node]:
    """Return those of *members* whose results others use."""
    inside = set(members)
    return [
        node
        for node in members
        if any(user not in inside and not is_size(user) for user in node.users)
    ]


def pair_of(node: Node) -> Node | None:
    """Return the reduction with two results of which *node* is one; None for any other node."""
    if node.target is not operator.getitem:
        return None
    source = node.args[0]
    return source if isinstance(source, Node) and source.target in PAIR_OPS else None


def is_reduction(node: Node) -> bool:
    """Return whether *node* is a reduction that inductor computes in generated kernels."""
    has_tag = torch.Tag.reduction in getattr(node.target, "tags", ())
    is_pair = node.target in PAIR_OPS
    return is_pair or (is_tensor(node) and (has_tag or node.target in _REDUCTION_OPS))


def is_read_again(reduction: Node) -> bool:
    """Return whether an operator of the region after *reduction* reads its rows once more.

    That is its operand, or a tensor of the same size of which generated kernels make the operand.
    """
    operand, *_ = tensors_of(reduction)
    sources = {operand, *producers_of(reduction)}
    sources |= {node for source in tuple(sources) for node in source.all_input_nodes}
    rows = {node for node in sources if _elements_of(node) == _elements_of(operand)}
    after = set(members_of(reduction, set())) - {reduction}
    return any(not rows.isdisjoint(node.all_input_nodes) for node in after)


def viewed_by(node: Node) -> Node:
    """Return the node whose memory *node* is, as far as views tell."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
        node = node.all_input_nodes[0]
    return node


def is_tensor(node: Node) -> bool:
    return node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor)


def tensors_of(gemm: Node) -> list[Node]:
    return [argument for argument in gemm.args if isinstance(argument, Node)]


def _members_with(gemm: Node, prologue: set[Node], *, has_pairs: bool) -> list[Node]:
    order = {node: i for i, node in enumerate(gemm.graph.nodes)}
    after = _downstream(gemm)
    members = {gemm, *prologue}
    for node in sorted(after, key=order.__getitem__):
        if len(members) >= _MAX_STEPS:
            break
        # A node that depends on a later GEMM runs in a later kernel.
        ready = all(other in members or other not in after for other in node.all_input_nodes)
        is_of_pair = node.target in PAIR_OPS or pair_of(node) is not None
        if ready and (has_pairs if is_of_pair else _is_generated(node)):
            members.add(node)
    return sorted(members | _siblings(members, {gemm, *prologue}), key=order.__getitem__)


def _downstream(start: Node) -> set[Node]:
    nodes: set[Node] = set()
    pending = list(start.users)
    while pending:
        node = pending.pop()
        if node not in nodes:
            nodes.add(node)
            pending.extend(node.users)
    return nodes


def _siblings(members: set[Node], made_before: set[Node]) -> set[Node]:
    # What the GEMM and its operands, *made_before*, read is no sibling, and neither is what depends
    # on the GEMM.
    siblings: set[Node] = set()
    inputs = {node for member in members - made_before for node in member.all_input_nodes}
    before = {node for member in made_before for node in member.all_input_nodes}
    for start in inputs - members - before:
        chain: set[Node] = set()
        pending = [start]
        while pending and len(chain) <= _GATE_STEPS:
            node = pending.pop()
            if not all(user in members or user in chain for user in node.users):
                continue
            if node.target in GEMM_OPS and is_tensor(node):
                siblings |= {*chain, node}
            elif _is_pointwise(node):
                chain.add(node)
                pending.extend(node.all_input_nodes)
    return siblings


def _elements_of(node: Node) -> int | None:
    sizes = sizes_of(node)
    return None if sizes is None else math.prod(sizes)


def _is_generated(node: Node) -> bool:
    return _is_pointwise(node) or (is_tensor(node) and is_reduction(node))


def _is_pointwise(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not is_tensor(node):
        return False
    return torch.Tag.pointwise in target.tags or target in _POINTWISE_OPS


_OPERATOR_TEXT: Final = re.compile(r"(?:aten|prims)\.(?!__)[a-z_0-9]+\.(?!__)[a-zA-Z_0-9]+")

_FORMATS: Final = {
    str(memory_format).removeprefix("torch."): memory_format
    for memory_format in (torch.contiguous_format, torch.preserve_format, torch.channels_last)
}
_SCALE_ARGUMENTS: Final = slice(2, 4)  # positions among the arguments of _scaled_mm


class _NotPlainError(Exception):
    """A region contains something that plain values cannot describe."""


def region_of(gemm: Node, operands: Sequence[TensorSpec], *, has_epilogue: bool) -> Region | None:
    """Return the region around *gemm*; None if there is none or plain values cannot describe it."""
    # *operands* are the layouts in which the GEMM receives its tensors: inductor may choose others
    # than the graph has. A dynamic size is replaced by its hint.
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

    Operations that compute operands belong to it whatever they read, since the padding of an
    operand is fused into them. Operands have the layouts of the graph, and a dynamic size its hint.
    """
    return _with_producers(gemm) if gemm.target in GEMM_OPS and is_tensor(gemm) else None


def region_of_reduction(reduction: Node) -> Region | None:
    """Return *reduction* with what makes its operand and what follows; None if no plain value."""
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
