"""The region of a GEMM: cut out of the graph that inductor is lowering, and made into one again.

It holds what the scheduler may fuse into this GEMM or into what follows it: everything computed
from the product element by element or by reduction, up to the next operator that is a kernel of its
own; what makes an operand out of fewer bytes (a weight that is kept in int8); and the other product
that ends in the same place, as of a gated MLP, since only one of the two can take the gate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.fx import Graph, GraphModule, Node

from warmup.core.trial import Argument, Region, Step, TensorSpec
from warmup.inductor.gemm.sizes import bytes_of, is_size, plain, sizes_of, spec_of_node

MAX_REGION_STEPS: Final = 64
_PROLOGUE_STEPS: Final = 8
_PROLOGUE_BYTES: Final = 1.1  # read for each written one (scheduler.py, can_fuse with a prologue)
_OPERATOR_TEXT: Final = re.compile(r"(?:aten|prims)\.(?!__)[a-z_0-9]+\.(?!__)[a-zA-Z_0-9]+")

_FORMATS: Final = {
    str(one).removeprefix("torch."): one
    for one in (torch.contiguous_format, torch.preserve_format, torch.channels_last)
}
_aten = torch.ops.aten
_PRODUCTS: Final = frozenset(
    {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
)
# Computed by inductor's own kernels, though not tagged as pointwise or as reduction.
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
_REDUCTION_OPS: Final = frozenset(
    {_aten.var_mean.correction, _aten.var.correction, _aten._softmax.default}
)


class _UntoldError(Exception):
    """Something in the region cannot be told in plain values."""


def region_of(gemm: Node, operands: Sequence[TensorSpec], *, has_epilogue: bool) -> Region | None:
    """Return the region around *gemm*; None when nothing can be fused or told in plain values.

    *operands* are how the GEMM will find its tensor arguments, in their order: inductor may lay
    them out in another way than the graph says. A dynamic size is told by its hint.
    """
    if gemm.target not in _PRODUCTS or not _is_tensor(gemm):
        return None
    prologue = _prologue(gemm)
    if not prologue and not has_epilogue:
        return None
    members = _members(gemm, prologue)
    if not all(map(spec_of_node, members)):
        return None
    wanted = [
        node
        for node in members
        if any(user not in members and not is_size(user) for user in node.users)
    ]
    laid_out = {
        node: spec
        for node, spec in zip(_tensors(gemm), operands, strict=False)
        if node not in members and spec.sizes == sizes_of(node)  # a bias is expanded
    }
    try:
        return _told(gemm, members, wanted or [gemm], laid_out)
    except _UntoldError:
        return None


def module_of(region: Region, device: torch.device, wide: torch.dtype | None = None) -> GraphModule:
    """Return *region* as a module that takes its inputs and returns a tuple of its outputs.

    With *wide*, every floating dtype that it casts to is that one.
    """

    def dtype_of(name: str) -> torch.dtype:
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype), name
        return wide if wide is not None and dtype.is_floating_point else dtype

    graph = Graph()
    inputs = [graph.placeholder(f"input_{i}") for i in range(len(region.inputs))]
    made: list[Node] = []

    def read(argument: Argument) -> Any:
        if isinstance(argument, list | tuple):
            return [read(one) for one in argument]
        if not isinstance(argument, dict):
            return argument
        ((kind, value),) = argument.items()
        readers: dict[str, Callable[[Any], Any]] = {
            "step": made.__getitem__,
            "input": inputs.__getitem__,
            "dtype": dtype_of,
            "memory_format": _FORMATS.__getitem__,
            "device": lambda _: device,
        }
        return readers[kind](value)

    for step in region.steps:
        if _OPERATOR_TEXT.fullmatch(step.target) is None:
            raise ValueError(f"{step.target!r} is no operator of torch")
        namespace, name, overload = step.target.split(".")
        operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        kwargs = {name: read(value) for name, value in step.kwargs.items()}
        made.append(graph.call_function(operator, tuple(map(read, step.args)), kwargs))
    graph.output(tuple(made[i] for i in region.outputs))
    return GraphModule(torch.nn.Module(), graph)


def _members(gemm: Node, prologue: set[Node]) -> list[Node]:
    """Return the nodes of the region, in graph order."""
    order = {node: i for i, node in enumerate(gemm.graph.nodes)}
    after = _downstream(gemm)
    members = {gemm, *prologue}
    for node in sorted(after, key=order.__getitem__):
        if len(members) >= MAX_REGION_STEPS:
            break
        # What waits for another GEMM behind this one is computed later.
        ready = all(one in members or one not in after for one in node.all_input_nodes)
        if ready and _is_generated(node):
            members.add(node)
    return sorted(members | _siblings(gemm, members), key=order.__getitem__)


def _downstream(start: Node) -> set[Node]:
    found: set[Node] = set()
    waiting = list(start.users)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.users)
    return found


def _prologue(gemm: Node) -> set[Node]:
    """Return what makes an operand of *gemm* out of fewer bytes, for nobody else."""
    found: set[Node] = set()
    for operand in _tensors(gemm):
        chain: set[Node] = set()
        waiting = [operand]
        while waiting and len(chain) <= _PROLOGUE_STEPS:
            node = waiting.pop()
            if _is_pointwise(node) and all(user in chain or user is gemm for user in node.users):
                chain.add(node)
                waiting.extend(node.all_input_nodes)
        read = {one for node in chain for one in node.all_input_nodes if one not in chain}
        sources = [one for one in read if not is_size(one)]
        if chain and sum(map(bytes_of, sources)) <= _PROLOGUE_BYTES * bytes_of(operand):
            found |= chain
    return found


def _siblings(gemm: Node, members: set[Node]) -> set[Node]:
    """Return the products that only *members* use, and what is between the two.

    They must not wait for *gemm*; that is true of everything that a member reads and that is no
    member itself.
    """
    found: set[Node] = set()
    outside = {one for node in members for one in node.all_input_nodes} - members
    for start in outside - set(gemm.all_input_nodes):
        chain: set[Node] = set()
        waiting = [start]
        while waiting and len(chain) <= _PROLOGUE_STEPS:
            node = waiting.pop()
            if not all(user in members or user in chain for user in node.users):
                continue
            if node.target in _PRODUCTS and _is_tensor(node):
                found |= {*chain, node}
            elif _is_pointwise(node):
                chain.add(node)
                waiting.extend(node.all_input_nodes)
    return found


def _flops(node: Node) -> int:
    a, _ = _tensors(node)[-2:]
    return 2 * math.prod(sizes_of(node) or ()) * (sizes_of(a) or (0,))[-1]


def _is_generated(node: Node) -> bool:
    """Whether inductor makes *node* part of a kernel that it generates."""
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


def _told(
    gemm: Node, members: list[Node], wanted: list[Node], laid_out: dict[Node, TensorSpec]
) -> Region:
    inputs: dict[Node, TensorSpec] = {}
    steps = {node: i for i, node in enumerate(members)}

    def tell(argument: Any) -> Argument:
        argument = plain(argument)
        if isinstance(argument, Node):
            if argument in steps:
                return {"step": steps[argument]}
            spec = inputs.get(argument) or laid_out.get(argument) or spec_of_node(argument)
            if spec is None:
                raise _UntoldError
            inputs[argument] = spec
            return {"input": list(inputs).index(argument)}
        if isinstance(argument, list | tuple):
            return [tell(one) for one in argument]
        if isinstance(argument, torch.dtype):
            return {"dtype": str(argument).removeprefix("torch.")}
        if isinstance(argument, torch.memory_format) and argument in _FORMATS.values():
            return {"memory_format": str(argument).removeprefix("torch.")}
        if isinstance(argument, torch.device):
            return {"device": True}
        if argument is None or isinstance(argument, bool | int | float | str):
            return argument
        raise _UntoldError

    told = tuple(
        Step(
            _name(node),
            tuple(map(tell, node.args)),
            {name: tell(value) for name, value in node.kwargs.items()},
        )
        for node in members
    )
    products = [gemm, *(node for node in members if node.target in _PRODUCTS and node is not gemm)]
    return Region(
        inputs=tuple(inputs.values()),
        steps=told,
        outputs=tuple(steps[node] for node in wanted),
        flops=tuple(map(_flops, products)),
    )


def _name(node: Node) -> str:
    name = str(node.target)
    if _OPERATOR_TEXT.fullmatch(name) is None:
        raise _UntoldError
    return name


def _tensors(gemm: Node) -> list[Node]:
    return [one for one in gemm.args if isinstance(one, Node)]
