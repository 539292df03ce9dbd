"""The clock: sleeping kernels, captured calls, rounds, and the host's times; no GPU is needed."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch

from warmup.core.rows import L2
from warmup.measuring import clock
from warmup.measuring.clock import run_rounds


class Answers:
    """Events that say one after the other whether the device has begun."""

    def __init__(self, *answers: bool) -> None:
        self._answers: Iterator[bool] = iter(answers)

    @property
    def have_begun(self) -> bool:
        """Return the next answer; there must be one."""
        return next(self._answers)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cycles of each sleeping kernel, of which one microsecond has two."""
    cycles: list[int] = []
    monkeypatch.setattr(clock, "_sleep", cycles.append)
    monkeypatch.setattr(clock, "_cycles_per_us", lambda _: 2.0)
    return cycles


def run(*answers: bool, ahead: clock.Headstart | None = None) -> int:
    """Return how often calls are enqueued behind *ahead*, while events give *answers*."""
    enqueued: list[None] = []
    ahead = ahead or clock.Headstart(torch.device("cuda"), 50.0)
    ahead.run(lambda: enqueued.append(None), Answers(*answers))  # type: ignore[arg-type]  # fake
    return len(enqueued)


def test_calls_that_the_device_began_after_the_last_was_enqueued_run_once(
    sleeps: list[int],
) -> None:
    """Where the host was in time, the calls are enqueued once."""
    assert run(False) == len(sleeps) == 1


def test_calls_that_the_device_began_too_early_run_again_behind_twice_the_sleep(
    sleeps: list[int],
) -> None:
    """A time that contains work of the host is not used."""
    assert run(True, True, False) == len(sleeps)
    assert sleeps == [100, 200, 400]


def test_the_sleep_stays_as_long_as_the_host_needed_once(sleeps: list[int]) -> None:
    """Later calls wait behind the longer sleep."""
    ahead = clock.Headstart(torch.device("cuda"), 50.0)
    run(True, False, ahead=ahead)
    run(False, ahead=ahead)
    assert sleeps == [100, 200, 200]


def test_the_sleep_is_doubled_three_times_at_most(sleeps: list[int]) -> None:
    """Calls that cannot all be in the queue, such as those of more kernels than it holds, end."""
    ahead = clock.Headstart(torch.device("cuda"), 50.0)
    run(True, True, True, ahead=ahead)
    run(ahead=ahead)
    assert sleeps == [100, 200, 400, 800, 800]


class Operands:
    """What a call reads."""


def read(operands: Operands, number: int) -> object:
    """Read *operands*, in each call of a batch."""
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
    device = torch.device("cuda")
    graph = clock._CapturedCalls(functools.partial(read, operands), device, 2)
    batch = clock._DeviceBatch(graph.replay, device, L2.COLD, 2, 1.0)
    del graph
    del operands
    gc.collect()
    assert alive() is not None
    del batch
    gc.collect()
    assert alive() is None


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
