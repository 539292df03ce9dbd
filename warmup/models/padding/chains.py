"""`find_chains`: Linears that pass features to each other through operations that keep zeros.

In the traced graph of one module, padding is followed from the Linears that could produce it to
those that could consume it. Linears form a chain when padded features reach no other result of the
module, and are still zero at each consumer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from warmup.models.padding.tracing import TracedModule
from warmup.models.padding.zeros import (
    LostZerosError,
    PaddedValues,
    make_padding,
    propagate_padding,
)


@dataclass(frozen=True, slots=True)
class Chain:
    """Linears that produce features and Linears that consume them, in the order of their calls.

    ``via`` is the expression of the consumers' input, as keys have it. ``between`` computes it: its
    placeholders are the outputs of the producers, its output a tuple with one value for each
    consumer. ``sources`` numbers the activation that each producer reads: producers of the same
    activation have the same number.
    """

    producers: tuple[nn.Linear, ...]
    consumers: tuple[nn.Linear, ...]
    via: str
    between: fx.Graph
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BrokenChain:
    """Linears whose features cannot be padded together, and why."""

    linears: tuple[nn.Linear, ...]
    reason: str


def find_chains(
    traced: TracedModule, producers: Collection[nn.Linear], consumers: Collection[nn.Linear]
) -> tuple[list[Chain], list[BrokenChain]]:
    """Return the chains from *producers* to *consumers* in *traced*, and the broken ones.

    Each Linear is in one chain at most: a consumer of a chain is no producer of another. Linears
    that are called more than once are in no chain.
    """
    calls = Counter(traced.linears.values())
    once = {linear for linear, count in calls.items() if count == 1}
    producing, consuming = once.intersection(producers), once.intersection(consumers)
    broken: list[BrokenChain] = []
    while True:  # a consumer in a broken chain may be a producer of another chain
        flow = _PaddingFlow(traced, producing, consuming)
        reasons = flow.broken_roots()
        if not reasons:
            return [flow.chain_of(root) for root in flow.roots()], broken
        for root, reason in reasons.items():
            broken.append(BrokenChain((*flow.producers_of(root), *flow.consumers_of(root)), reason))
            producing.difference_update(flow.producers_of(root))


class _PaddingFlow:
    """Padding of the outputs of *producers*, followed through a graph until *consumers* read it.

    Producers whose features meet in one operation belong together; one of them is their root.
    """

    def __init__(
        self,
        traced: TracedModule,
        producers: Collection[nn.Linear],
        consumers: Collection[nn.Linear],
    ) -> None:
        self._traced = traced
        self._consumers = consumers
        self._known: dict[fx.Node, Any] = {}
        self._origins: dict[fx.Node, nn.Linear] = {}  # of each padded value, one of its producers
        self._inputs: dict[fx.Node, fx.Node] = {}  # of each consumer's call, the padded input
        self._roots: dict[nn.Linear, nn.Linear] = {}
        self._calls: dict[nn.Linear, fx.Node] = {}
        self._reasons: list[tuple[nn.Linear, str]] = []
        for node in traced.graph.nodes:
            linear = traced.linears.get(node)
            padded = [value for value in node.all_input_nodes if value in self._origins]
            if padded:
                self._follow(node, padded)
            elif linear is not None and linear in producers:
                padding = make_padding(f"p{len(self._calls)}", linear.weight.dtype)
                self._known[node], self._origins[node] = padding, linear
                self._roots[linear], self._calls[linear] = linear, node

    def roots(self) -> list[nn.Linear]:
        """Return one producer of each chain, in the order of their calls."""
        return [linear for linear, root in self._roots.items() if linear is root]

    def producers_of(self, root: nn.Linear) -> list[nn.Linear]:
        """Return the producers that belong to *root*, in the order of their calls."""
        return [linear for linear in self._calls if self._root(linear) is root]

    def consumers_of(self, root: nn.Linear) -> list[nn.Linear]:
        """Return the consumers of the features of *root*, in the order of their calls."""
        return [self._traced.linears[node] for node, _ in self._consumer_calls(root)]

    def broken_roots(self) -> dict[nn.Linear, str]:
        """Return each root whose features cannot be padded, with the reason."""
        reasons: dict[nn.Linear, str] = {}
        for producer, reason in self._reasons:
            reasons.setdefault(self._root(producer), reason)
        for root in self.roots():
            for _, value in self._consumer_calls(root):
                if not self._known[value].is_zero:
                    expression = self._expression(root, value)
                    reasons.setdefault(root, f"{expression} of zeros is not zero")
            if not self._consumer_calls(root):
                reasons.setdefault(root, "no Linear reads the features")
        return reasons

    def chain_of(self, root: nn.Linear) -> Chain:
        """Return the chain of *root*, which is not broken."""
        producers = self.producers_of(root)
        activations = [self._calls[producer].all_input_nodes[0] for producer in producers]
        numbers = {node: number for number, node in enumerate(dict.fromkeys(activations))}
        expressions = [self._expression(root, value) for _, value in self._consumer_calls(root)]
        return Chain(
            producers=tuple(producers),
            consumers=tuple(self.consumers_of(root)),
            via=expressions[0] if len({*expressions}) == 1 else ";".join(expressions),
            between=self._between(root),
            sources=tuple(numbers[node] for node in activations),
        )

    def _follow(self, node: fx.Node, padded: list[fx.Node]) -> None:
        """Follow the *padded* inputs of *node* into its result, or note why that is impossible."""
        linear = self._traced.linears.get(node)
        if linear is not None and linear in self._consumers:
            self._inputs[node] = padded[0]
            return
        producers = [self._origins[value] for value in padded]
        if node.op not in ("call_function", "call_method"):
            is_output = node.op == "output"
            reader = "the caller" if is_output else node.target
            reason = f"{reader} reads the features"
            self._reasons += [(producer, reason) for producer in producers]
            return
        try:
            result = propagate_padding(node, self._known)
        except LostZerosError as error:
            self._reasons += [(producer, str(error)) for producer in producers]
            return
        self._known[node] = result
        if isinstance(result, PaddedValues):
            self._origins[node] = producers[0]
            for producer in producers:
                self._roots[self._root(producer)] = self._root(producers[0])

    def _root(self, producer: nn.Linear) -> nn.Linear:
        while (root := self._roots[producer]) is not producer:
            producer = root
        return producer

    def _consumer_calls(self, root: nn.Linear) -> list[tuple[fx.Node, fx.Node]]:
        """Return the calls of the consumers of *root*, each with its padded input."""
        return [
            (node, value)
            for node, value in self._inputs.items()
            if self._root(self._origins[value]) is root
        ]

    def _expression(self, root: nn.Linear, value: fx.Node) -> str:
        """Return the expression of *value*, in which the producers of *root* count from ``p0``."""
        numbers = {producer: number for number, producer in enumerate(self._calls)}
        names = {f"p{numbers[own]}": f"p{i}" for i, own in enumerate(self.producers_of(root))}
        expression: str = self._known[value].expression
        return re.sub(r"\bp[0-9]+\b", lambda match: names[match[0]], expression)

    def _between(self, root: nn.Linear) -> fx.Graph:
        """Return the graph from the outputs of the producers of *root* to the consumers' inputs."""
        graph = fx.Graph()
        copies = {
            self._calls[producer]: graph.placeholder(f"features_{number}")
            for number, producer in enumerate(self.producers_of(root))
        }
        for node in self._traced.graph.nodes:
            is_between = node in self._known and node not in copies
            if is_between and all(value in copies for value in node.all_input_nodes):
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[value] for _, value in self._consumer_calls(root)))
        return graph
