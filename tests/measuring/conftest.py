"""Small trials on a CPU, and a clock that reports made-up times: no real time decides a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from warmup.core.method import L2, Launch, Method
from warmup.core.rows import Family, Winner
from warmup.core.trial import Candidate, TensorSpec, Trial, ViewSpec
from warmup.measuring import screening

LONG_US = 1e5  # so long that no wall clock contradicts it: a call on any machine is over by then


def _dense(*sizes: int, dtype: str = "float32", offset: int = 0) -> TensorSpec:
    strides = torch.empty(sizes, device="meta").stride()
    return TensorSpec(sizes, tuple(strides), offset, dtype)


def _extern(name: str) -> Candidate:
    spec = {"extern": name, "kwargs": {}, "writes": True}
    return Candidate(Winner(Family.EXTERN, f"aten::{name}"), spec)


def _make_trial(names: Sequence[str] = ("mm",), **changes: Any) -> Trial:
    """Return a trial of ``mm`` of 256 x 192 by 192 x 128; the first of *names* is the control."""
    a, b = _dense(256, 192), _dense(192, 128)
    candidates = tuple(map(_extern, names))
    return Trial(
        **{
            "key": "mm m=256 n=128 k=192 f32 a=row b=row out=f32 | epilogue=none",
            "op": "mm",
            "device": "cpu",
            "operands": (a, b),
            "views": (ViewSpec(0, a.sizes, a.strides, 0), ViewSpec(1, b.sizes, b.strides, 0)),
            "out": _dense(256, 128),
            "candidates": candidates,
            "library": candidates[0].winner if candidates else _extern("mm").winner,
            "method": Method(l2=L2.WARM),
            "tolerance": 1e-2,
            **changes,
        }
    )


@dataclass
class FakeClock:
    """Reports ``times``, by the uid of a call: one number, or what an iterator yields.

    An iterator may yield an exception, which is raised. ``taken`` counts.
    """

    times: dict[str, float | Iterator[float | Exception]] = field(default_factory=dict)
    taken: Counter[str] = field(default_factory=Counter)

    def batch_of(
        self, call: Any, device: torch.device, launch: Launch, l2: L2, sets: int
    ) -> _FakeBatch:
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


@pytest.fixture(scope="session")
def dense() -> Callable[..., TensorSpec]:
    """``dense(2, 3, dtype="int8", offset=4)``: a contiguous tensor."""
    return _dense


@pytest.fixture(scope="session")
def make_trial() -> Callable[..., Trial]:
    """``make_trial(["mm", "good"], tolerance=None)``: library calls on a CPU; see above."""
    return _make_trial


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock of measurements in this process, until the test ends; 0.1 s for every call."""
    clock = FakeClock()
    monkeypatch.setattr(screening, "batch_of", clock.batch_of)
    monkeypatch.setattr(screening, "PAUSES_S", (0.0,) * len(screening.PAUSES_S))
    return clock
