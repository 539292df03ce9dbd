"""Interleaving: in every round each item has its turn, and each round begins with another item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_Participant = TypeVar("_Participant")


def in_turn(items: Sequence[_Participant], number: int) -> list[_Participant]:
    """Return *items* in the order of round *number*, counted from 0: one further on each round.

    A drift of the machine then meets all items alike, and none is always first.
    """
    first = number % len(items) if items else 0
    return [*items[first:], *items[:first]]
