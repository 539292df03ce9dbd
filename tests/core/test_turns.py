"""Interleaving."""

from __future__ import annotations

from warmup.core.processes import in_turn


def test_every_item_is_first_once_and_each_round_has_all() -> None:
    """Each round begins one further on, and after as many rounds as items it starts over."""
    assert [in_turn("abc", number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]
    # Without items, as when all variants failed, a round is empty.
    for number in (0, 5):
        assert in_turn([], number) == []
