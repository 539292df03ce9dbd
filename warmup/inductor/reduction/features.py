"""`key_of`: the key of a reduction from inductor's features of its kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from torch._inductor.runtime.runtime_utils import next_power_of_2
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from warmup.core.dtypes import dtype_name
from warmup.core.errors import ProblemError
from warmup.keys.reduction import ReductionProblem

_TEXT: Final = re.compile(r"'(\w+)'")
_SYMBOL: Final = re.compile(r"\b(?:ks|[su])\d+\b")


def key_of(features: Any) -> str:
    """Return the key of the reduction with *features*.

    A number of rows that is a range is spelled as inductor's size hint for it, rounded up to a
    power of two, as in keys of launch configs.

    Raises:
        ProblemError: a key cannot describe the reduction.
    """
    nodes = list(features.scheduler_nodes())
    try:
        kept = _kept_buffers(nodes)
        written = {name for node in nodes for name in node.get_buffer_names()}
        read = {dep.name for node in nodes for dep in node.read_writes.reads} - written
        return ReductionProblem(
            ops=sorted(set(_reductions(nodes))),
            x=_rows(features.numel),
            r=int(features.reduction_numel),
            hint=features.get_reduction_hint().name.lower(),
            reads=sorted(dtype_name(V.graph.get_dtype(name)) for name in read),
            writes=sorted(dtype_name(V.graph.get_dtype(name)) for name in kept),
            body=_body(nodes, kept),
        ).key
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProblemError(f"a kernel that a key cannot describe: {error}") from error


def _reductions(nodes: Sequence[Any]) -> Iterator[str]:
    for node in nodes:
        if node.is_reduction():
            yield str(node.node.get_reduction_type())


def _rows(numel: Any) -> int:
    try:
        return int(numel)
    except TypeError:  # a range
        return int(next_power_of_2(int(V.graph.sizevars.optimization_hint(numel))))


def _kept_buffers(nodes: Sequence[Any]) -> frozenset[str]:
    """Return the buffers that *nodes* write to memory, because other kernels read them."""
    own = OrderedSet(node.get_name() for node in nodes)
    scheduler = V.graph.scheduler
    names = [name for node in nodes for name in node.get_buffer_names()]
    return frozenset(
        name for name in names if not scheduler.can_buffer_be_removed_through_fusion(name, own)
    )


def _body(nodes: Sequence[Any], kept: frozenset[str]) -> str:
    """Return what *nodes* compute as a text without names that depend on the rest of the graph."""
    names: dict[str, str] = {}
    symbols: dict[str, str] = {}
    buffers = {dep.name for node in nodes for dep in node.read_writes.reads_and_writes()}
    buffers |= {name for node in nodes for name in node.get_buffer_names()}

    def rename(found: re.Match[str]) -> str:
        name = found[1]
        if name not in buffers:
            return found[0]
        mark = "kept" if name in kept else "buffer"
        return names.setdefault(name, f"{mark}{len(names)} {V.graph.get_dtype(name)}")

    def number(found: re.Match[str]) -> str:
        return symbols.setdefault(found[0], f"size{len(symbols)}")

    texts = [f"{node.get_ranges()}\n{node._body.debug_str()}" for node in nodes]
    return _SYMBOL.sub(number, _TEXT.sub(rename, "\n".join(texts)))
