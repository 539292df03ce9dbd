"""`calls_to_json` and `calls_from_json`: what calls of buckets cost, as JSON values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from warmup.core.call_cost import CallCost
from warmup.core.json_node import MAX_STRING, Node
from warmup.table.schema import MAX_COSTS

_COST: Final = frozenset({"host_us", "device_us"})
_LAYERS_LEFT_OUT: Final = "left_out"  # in tables of earlier builds, which left layers out
_LONGEST_US: Final = 1e12


def calls_to_json(calls: Iterable[tuple[str, CallCost]]) -> dict[str, object]:
    """Return *calls* as JSON values."""
    return {
        name: {"host_us": float(cost.host_us), "device_us": float(cost.device_us)}
        for name, cost in calls
    }


def calls_from_json(node: Node) -> tuple[tuple[str, CallCost], ...]:
    """Return the costs of calls in *node*, by name.

    The cost of a call that an earlier build made without some of the model's layers is left out.

    Raises:
        TableFormatError: a value is missing, unknown, or out of its bounds.
    """
    named = list(node.items())
    if len(named) > MAX_COSTS:
        node.fail(f"expected at most {MAX_COSTS} calls")
    costs = ((_name(name, member), _cost(member)) for name, member in named)
    return tuple((name, cost) for name, cost in costs if cost is not None)


def _cost(node: Node) -> CallCost | None:
    """Return the cost in *node*; None for that of fewer layers than the model has."""
    members = node.members(_COST, optional=frozenset({_LAYERS_LEFT_OUT}))
    cost = CallCost(
        host_us=members["host_us"].number(0, _LONGEST_US),
        device_us=members["device_us"].number(0, _LONGEST_US),
    )
    return None if _LAYERS_LEFT_OUT in members else cost


def _name(name: str, node: Node) -> str:
    if not name.isprintable() or len(name) > MAX_STRING:
        node.fail(f"expected a name of at most {MAX_STRING} printable characters")
    return name
