"""A clock that reports made-up times: no real time decides a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from warmup.core.rows import L2
from warmup.measuring import trial as screening

LONG_US = 1e5  # so long that no wall clock contradicts it: a call on any machine is over by then


@dataclass
class FakeClock:
    """Reports ``times``, by the uid of a call: one number, or what an iterator yields.

    An iterator may yield an exception, which is raised. ``taken`` counts.
    """

    times: dict[str, float | Iterator[float | Exception]] = field(default_factory=dict)
    taken: Counter[str] = field(default_factory=Counter)

    def batch_of(self, call: Any, device: torch.device, l2: L2, sets: int) -> _FakeBatch:
        """Return a batch that runs nothing; as `warmup.measuring.clock.batch_of`."""
        return _FakeBatch(self, call.uid)


@dataclass
class _FakeBatch:
    clock: FakeClock
    uid: str
    calls: int = 1

    def time(self) -> float:
        self.clock.taken[self.uid] += 1
        times = self.clock.times.get(self.uid, LONG_US)
        found = times if isinstance(times, float) else next(times)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock of measurements in this process, until the test ends; 0.1 s for every call."""
    clock = FakeClock()
    monkeypatch.setattr(screening, "batch_of", clock.batch_of)
    monkeypatch.setattr(screening, "PAUSES_S", (0.0,) * len(screening.PAUSES_S))
    return clock
