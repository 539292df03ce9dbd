"""The clock: sleeping kernels, captured calls and rounds; no GPU is needed."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from warmup.core.rows import L2
from warmup.measuring import clock
from warmup.measuring.clock import Headstart, run_rounds

CUDA = torch.device("cuda")


class Answers:
    """Events that say one after the other whether the device has begun."""

    def __init__(self, *answers: bool) -> None:
        self._answers: Iterator[bool] = iter(answers)

    @property
    def have_begun(self) -> bool:
        return next(self._answers)


def test_calls_that_the_device_began_too_early_run_again_behind_twice_the_sleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A time with work of the host is not used; later calls sleep as long; three doublings."""
    for begun, sleeps in (
        ([(False,)], [100]),
        ([(True, True, False)], [100, 200, 400]),
        ([(True, False), (False,)], [100, 200, 200]),
        ([(True, True, True), ()], [100, 200, 400, 800, 800]),
    ):
        cycles: list[int] = []
        enqueued: list[int] = []
        monkeypatch.setattr(clock, "_sleep", cycles.append)
        monkeypatch.setattr(clock, "_cycles_per_us", lambda _: 2.0)
        ahead = Headstart(CUDA, 50.0)
        for answers in begun:
            events: Any = Answers(*answers)
            ahead.run(lambda enqueued=enqueued: enqueued.append(1), events)
        assert (cycles, len(enqueued)) == (sleeps, len(sleeps)), begun


class Operands:
    """What a call reads."""


def read(operands: Operands, number: int) -> object:
    return operands, number


class NoGraph:
    """A CUDA graph that keeps nothing of what was captured, as torch's does."""

    def replay(self) -> None:
        """Do nothing."""


@contextlib.contextmanager
def no_capture(*_: object, **__: object) -> Iterator[None]:
    yield


def test_a_batch_keeps_the_operands_of_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands that the call alone refers to live until the batch is dropped.

    A graph reads their memory at each replay: were they freed, it would read what another call of
    the process has put there, such as an index that is out of range.
    """
    monkeypatch.setattr(torch.cuda, "CUDAGraph", NoGraph)
    monkeypatch.setattr(torch.cuda, "graph", no_capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: None)
    monkeypatch.setattr(clock, "_cycles_per_us", lambda _: 1.0)
    operands = Operands()
    alive = weakref.ref(operands)
    graph = clock._CapturedCalls(functools.partial(read, operands), CUDA, 2)
    batch = clock._DeviceBatch(graph.replay, CUDA, L2.COLD, 2, 1.0)
    del graph, operands
    gc.collect()
    assert alive() is not None
    del batch
    gc.collect()
    assert alive() is None


@dataclass
class Counted:
    """A batch whose time is how many batches were timed before it; ``c`` cannot be timed."""

    name: str
    order: list[str]
    calls: int = 1

    def time(self) -> float:
        if self.name == "c":
            raise ZeroDivisionError
        self.order.append(self.name)
        return float(len(self.order) - 1)


def test_each_batch_is_first_in_turn_and_has_its_own_times() -> None:
    order: list[str] = []
    found = run_rounds({name: Counted(name, order) for name in "ab"}, 3)
    assert "".join(order) == "abbaab"
    assert {name: samples.times_us for name, samples in found.items()} == {
        "a": (0.0, 3.0, 4.0),
        "b": (1.0, 2.0, 5.0),
    }
    told: list[str] = []
    with pytest.raises(ZeroDivisionError):
        run_rounds({name: Counted(name, order) for name in "bca"}, 3, told.append)
    assert told == ["b", "c"]
