"""`calls_to_json` and `calls_from_json`: what calls of buckets cost, as JSON values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from warmup.core.call_cost import CallCost
from warmup.core.json_node import MAX_STRING, Node
from warmup.core.rows import MAX_INT
from warmup.table.schema import MAX_COSTS

_COST: Final = frozenset({"host_us", "device_us"})
_LAYERS_LEFT_OUT: Final = "left_out"
_LONGEST_US: Final = 1e12


def calls_to_json(calls: Iterable[tuple[str, CallCost]]) -> dict[str, object]:
    """Return *calls* as JSON values."""
    return {
        name: {
            "host_us": float(cost.host_us),
            "device_us": float(cost.device_us),
            **({_LAYERS_LEFT_OUT: cost.left_out} if cost.left_out else {}),
        }
        for name, cost in calls
    }


def calls_from_json(node: Node) -> tuple[tuple[str, CallCost], ...]:
    """Return the costs of calls in *node*, by name.

    Raises:
        TableFormatError: a value is missing, unknown, or out of its bounds.
    """
    named = list(node.items())
    if len(named) > MAX_COSTS:
        node.fail(f"expected at most {MAX_COSTS} calls")
    return tuple((_name(name, member), _cost(member)) for name, member in named)


def _cost(node: Node) -> CallCost:
    members = node.members(_COST, optional=frozenset({_LAYERS_LEFT_OUT}))
    return CallCost(
        host_us=members["host_us"].number(0, _LONGEST_US),
        device_us=members["device_us"].number(0, _LONGEST_US),
        left_out=members[_LAYERS_LEFT_OUT].integer(1, MAX_INT)
        if _LAYERS_LEFT_OUT in members
        else 0,
    )


def _name(name: str, node: Node) -> str:
    if not name.isprintable() or len(name) > MAX_STRING:
        node.fail(f"expected a name of at most {MAX_STRING} printable characters")
    return name
