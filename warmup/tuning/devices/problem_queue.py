"""`ProblemQueue`: the problems of a build that wait for a device, and which device lost which."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from typing import Final

from warmup.tuning.report import NOT_BEGUN

MOST_LOSSES: Final = 2  # of one problem: the first device's, and that of the one that takes over


class ProblemQueue:
    """The keys that wait, in order; a key whose worker was lost waits in front, for another device.

    ``failed`` has, by key, why it is not tuned: how its workers were lost, or that it still waited
    when `time.monotonic` reached *deadline*.
    """

    def __init__(self, keys: Iterable[str], deadline: float = math.inf) -> None:
        self._waiting = list(keys)
        self._numbers = {key: number for number, key in enumerate(self._waiting)}
        self._deadline = deadline
        self._lost: dict[str, list[tuple[str, str]]] = {}
        self.failed: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def total(self) -> int:
        """The number of all problems, finished ones too."""
        return len(self._numbers)

    def number_of(self, key: str) -> int:
        """Return the place of *key* in the order of the build, from 0."""
        return self._numbers[key]

    def take(self, device: str, others: Collection[str]) -> str | None:
        """Return the next key for *device*; None where what waits is for one of the *others*.

        A device gets a key that it lost only when none of *others*, the devices in use beside it,
        is left to take it. At the deadline all that waits fails.
        """
        if self._waiting and time.monotonic() >= self._deadline:
            self.fail_rest(NOT_BEGUN)
        for index, key in enumerate(self._waiting):
            lost_by = {name for name, _ in self._lost.get(key, ())}
            if device not in lost_by or not set(others) - lost_by - {device}:
                return self._waiting.pop(index)
        return None

    def lose(self, key: str, device: str, reason: str) -> bool:
        """Record that the worker on *device* was lost with *key*; return whether it waits again."""
        losses = self._lost.setdefault(key, [])
        losses.append((device, reason))
        if len(losses) < MOST_LOSSES:
            self._waiting.insert(0, key)
            return True
        self.failed[key] = "; then ".join(f"the worker on {name} {why}" for name, why in losses)
        return False

    def fail_rest(self, reason: str) -> None:
        """Give up every key that waits, for *reason*."""
        for key in self._waiting:
            losses = self._lost.get(key, ())
            parts = [reason, *(f"the worker on {name} {why}" for name, why in losses)]
            self.failed[key] = "; ".join(parts)
        self._waiting.clear()
