"""Chains: Linears that hand features to each other through operations that keep zeros.

In the traced graph of one module, padding is followed from the Linears that could make it to those
that could take it. A chain holds when all that reads padded features ends in such Linears, and they
find zeros at the padding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from warmup.models.padding.tracing import Traced
from warmup.models.padding.zeros import LostZerosError, PaddedValues, made_padding, passed_padding


@dataclass(frozen=True, slots=True)
class Chain:
    """Linears that make features and those that take them, in the order of their calls.

    ``via`` spells what the latter take, as keys do; ``between`` computes it: its placeholders are
    what the former made, its output is a tuple. ``sources`` numbers what each of the former is
    given, so that two that share an activation have the same number.
    """

    makers: tuple[nn.Linear, ...]
    takers: tuple[nn.Linear, ...]
    via: str
    between: fx.Graph
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """Linears whose features cannot be padded together, and why."""

    linears: tuple[nn.Linear, ...]
    reason: str


def find_chains(
    traced: Traced, makers: Collection[nn.Linear], takers: Collection[nn.Linear]
) -> tuple[list[Chain], list[Broken]]:
    """Return the chains from *makers* to *takers* in *traced*, and where none holds.

    Each Linear is in one chain at most: what takes features of a chain makes none for another.
    Linears that are called more than once are in none.
    """
    calls = Counter(traced.linears.values())
    once = {linear for linear, count in calls.items() if count == 1}
    making, taking = once.intersection(makers), once.intersection(takers)
    broken: list[Broken] = []
    while True:  # without what was broken, Linears that took its features may make some
        flow = _Flow(traced, making, taking)
        lost = flow.lost()
        if not lost:
            return [flow.chain_of(root) for root in flow.roots()], broken
        for root, reason in lost.items():
            broken.append(Broken((*flow.makers_of(root), *flow.takers_of(root)), reason))
            making.difference_update(flow.makers_of(root))


class _Flow:
    """The padding that *makers* would make, followed through a graph until *takers* take it.

    Makers whose features meet in one operation belong together; one of them is their root.
    """

    def __init__(
        self, traced: Traced, makers: Collection[nn.Linear], takers: Collection[nn.Linear]
    ) -> None:
        self._traced = traced
        self._takers = takers
        self._known: dict[fx.Node, Any] = {}
        self._origins: dict[fx.Node, nn.Linear] = {}  # of each padded value, one of its makers
        self._taken: dict[fx.Node, fx.Node] = {}  # what each call takes
        self._roots: dict[nn.Linear, nn.Linear] = {}
        self._calls: dict[nn.Linear, fx.Node] = {}
        self._reasons: list[tuple[nn.Linear, str]] = []
        for node in traced.graph.nodes:
            linear = traced.linears.get(node)
            fed = [other for other in node.all_input_nodes if other in self._origins]
            if fed:
                self._follow(node, fed)
            elif linear is not None and linear in makers:
                padding = made_padding(f"p{len(self._calls)}", linear.weight.dtype)
                self._known[node], self._origins[node] = padding, linear
                self._roots[linear], self._calls[linear] = linear, node

    def roots(self) -> list[nn.Linear]:
        """Return one maker of each chain, in the order of their calls."""
        return [linear for linear, root in self._roots.items() if linear is root]

    def makers_of(self, root: nn.Linear) -> list[nn.Linear]:
        """Return the makers that belong to *root*, in the order of their calls."""
        return [linear for linear in self._calls if self._root(linear) is root]

    def takers_of(self, root: nn.Linear) -> list[nn.Linear]:
        """Return the Linears that take the features of *root*, in the order of their calls."""
        return [self._traced.linears[node] for node, _ in self._taking(root)]

    def lost(self) -> dict[nn.Linear, str]:
        """Return the reason for each root whose features cannot be padded."""
        reasons: dict[nn.Linear, str] = {}
        for maker, reason in self._reasons:
            reasons.setdefault(self._root(maker), reason)
        for root in self.roots():
            for _, source in self._taking(root):
                if not self._known[source].is_zero:
                    reasons.setdefault(root, f"{self._spelled(root, source)} of zeros is not zero")
            if not self._taking(root):
                reasons.setdefault(root, "no Linear takes the features")
        return reasons

    def chain_of(self, root: nn.Linear) -> Chain:
        """Return the chain of *root*, which is not lost."""
        makers = self.makers_of(root)
        given = [self._calls[maker].all_input_nodes[0] for maker in makers]
        numbers = {node: number for number, node in enumerate(dict.fromkeys(given))}
        spelled = [self._spelled(root, source) for _, source in self._taking(root)]
        return Chain(
            makers=tuple(makers),
            takers=tuple(self.takers_of(root)),
            via=spelled[0] if len({*spelled}) == 1 else ";".join(spelled),
            between=self._between(root),
            sources=tuple(numbers[node] for node in given),
        )

    def _follow(self, node: fx.Node, fed: list[fx.Node]) -> None:
        linear = self._traced.linears.get(node)
        if linear is not None and linear in self._takers:
            self._taken[node] = fed[0]
            return
        makers = [self._origins[other] for other in fed]
        if node.op not in ("call_function", "call_method"):
            what = "it is returned" if node.op == "output" else f"{node.target} takes it as it is"
            self._reasons += [(maker, what) for maker in makers]
            return
        try:
            made = passed_padding(node, self._known)
        except LostZerosError as error:
            self._reasons += [(maker, str(error)) for maker in makers]
            return
        self._known[node] = made
        if isinstance(made, PaddedValues):
            self._origins[node] = makers[0]
            for maker in makers:
                self._roots[self._root(maker)] = self._root(makers[0])

    def _root(self, maker: nn.Linear) -> nn.Linear:
        while (root := self._roots[maker]) is not maker:
            maker = root
        return maker

    def _taking(self, root: nn.Linear) -> list[tuple[fx.Node, fx.Node]]:
        return [
            (node, source)
            for node, source in self._taken.items()
            if self._root(self._origins[source]) is root
        ]

    def _spelled(self, root: nn.Linear, source: fx.Node) -> str:
        """Return how *source* is computed, the makers of *root* numbered from 0."""
        every = list(self._calls)
        own = {f"p{every.index(maker)}": f"p{i}" for i, maker in enumerate(self.makers_of(root))}
        spelling: str = self._known[source].spelling
        return re.sub(r"\bp[0-9]+\b", lambda found: own[found[0]], spelling)

    def _between(self, root: nn.Linear) -> fx.Graph:
        """Return the graph from what the makers of *root* made to what is taken."""
        graph = fx.Graph()
        copies = {
            self._calls[maker]: graph.placeholder(f"made_{number}")
            for number, maker in enumerate(self.makers_of(root))
        }
        for node in self._traced.graph.nodes:
            is_between = node in self._known and node not in copies
            if is_between and all(other in copies for other in node.all_input_nodes):
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[source] for _, source in self._taking(root)))
        return graph
