"""`members_of`: which nodes of a graph belong to the region around a GEMM.

A region contains what the scheduler may fuse into the GEMM or into its consumers: everything
computed from its result pointwise or by reduction, up to the next operator with a kernel of its
own; operators that compute an operand from fewer bytes, such as the dequantization of an int8
weight; and a second GEMM whose result is combined with that of the first, as in a gated MLP, since
only one of the two GEMMs can fuse the gate.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Final

import torch
from torch.fx import Node

from warmup.inductor.gemm.sizes import bytes_of, is_size, sizes_of

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
PAIR_OPS: Final = frozenset({_aten.var_mean.correction})  # reductions with two results
_REDUCTION_OPS: Final = frozenset({_aten.var.correction, _aten._softmax.default})


def members_of(gemm: Node, prologue: set[Node]) -> list[Node]:
    """Return the nodes of the region around *gemm*, in graph order.

    *prologue* are the nodes that compute its operands and belong to the region.
    """
    members = _members_with(gemm, prologue, has_pairs=True)
    if any(node.target in PAIR_OPS or pair_of(node) for node in outputs_of(members)):
        return _members_with(gemm, prologue, has_pairs=False)  # one of two results is no output
    return members


def prologue_of(gemm: Node) -> set[Node]:
    """Return the nodes that compute operands of *gemm* alone, each from fewer bytes.

    What follows a reduction pointwise is none of them: it is computed by the reduction's kernel.
    """
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
    """Return whether *node* computes one tensor."""
    return node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor)


def tensors_of(gemm: Node) -> list[Node]:
    """Return the nodes among the positional arguments of *gemm*, in order."""
    return [argument for argument in gemm.args if isinstance(argument, Node)]


def _members_with(gemm: Node, prologue: set[Node], *, has_pairs: bool) -> list[Node]:
    """Return the nodes of the region, with reductions that have two results or without."""
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
    """Return the other GEMMs whose results only *members* use, and the nodes in between.

    *made_before* are the GEMM and what computes its operands. What these read is no sibling, and
    neither is what depends on the GEMM: the search starts at inputs of the other members, which are
    not members themselves.
    """
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
    """Whether inductor computes *node* in a generated kernel."""
    return _is_pointwise(node) or (is_tensor(node) and is_reduction(node))


def _is_pointwise(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not is_tensor(node):
        return False
    return torch.Tag.pointwise in target.tags or target in _POINTWISE_OPS
