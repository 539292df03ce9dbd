"""`run_rounds`: every batch once per round, and each round starts with the next batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from warmup.measuring.clock import run_rounds


@dataclass
class Counted:
    """A batch whose time is how many batches were timed before it."""

    name: str
    order: list[str]
    calls: int = 1

    def time(self) -> float:
        """Return the number of this timing."""
        self.order.append(self.name)
        return float(len(self.order) - 1)


def batches(names: str) -> tuple[dict[str, Counted], list[str]]:
    order: list[str] = []
    return {name: Counted(name, order) for name in names}, order


def test_the_order_rotates() -> None:
    """With three batches and four rounds, each batch is first in turn."""
    made, order = batches("abc")
    run_rounds(made, 4)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"


def test_times_belong_to_their_batch_in_the_order_taken() -> None:
    """Of two batches, the first has times number 0 and 3, the second 1 and 2."""
    made, _ = batches("ab")
    found = run_rounds(made, 2)
    assert {name: samples.times_us for name, samples in found.items()} == {
        "a": (0.0, 3.0),
        "b": (1.0, 2.0),
    }


def test_what_a_batch_raises_ends_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    made, order = batches("abc")
    fail: Callable[[], float] = lambda: 1 / 0  # noqa: E731
    monkeypatch.setattr(made["b"], "time", fail)
    told: list[str] = []
    with pytest.raises(ZeroDivisionError):
        run_rounds(made, 3, told.append)
    assert (told, order) == (["a", "b"], ["a"])
