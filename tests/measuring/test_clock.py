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

from warmup.core.rows import L2, Family, Launch, Method, Scope, Winner
from warmup.core.trial import Outcome, Samples
from warmup.measuring import clock
from warmup.measuring.clock import run_rounds
from warmup.measuring.selection import make_fused_row, make_row
from warmup.measuring.trial import CandidateRun, Screening


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


LIBRARY = Winner(Family.EXTERN, "aten::addmm")
GPU, CPU = torch.device("cuda"), torch.device("cpu")
TIMES = {"triton::mm": (10.0, 11.0), "triton::tma": (30.0, 31.0), "aten::mm": (40.0,)}


def candidate(uid: str, block: int) -> Winner:
    return Winner(Family.TEMPLATE, uid, (("BLOCK_M", block),), "0123abcd")


def outcome(winner: Winner, time_us: float, host_us: float | None = None) -> Outcome:
    host = None if host_us is None else Samples((host_us,) * 3)
    return Outcome(winner=winner, samples=Samples((time_us,) * 12), host=host)


def finalists(device: torch.device, launch: Launch) -> list[str]:
    """Return the finalists of made-up times, on *device*, which is not touched."""
    runs = [CandidateRun(LIBRARY)]
    runs[0].outcome = outcome(LIBRARY, 50.0)
    for uid, times in TIMES.items():
        for block, time_us in enumerate(times):
            runs.append(CandidateRun(candidate(uid, block)))
            runs[-1].outcome = outcome(runs[-1].winner, time_us)
    screening = Screening(runs, LIBRARY, device, Method(launch=launch))
    return [f"{run.winner.uid} {run.time_us:.0f}" for run in screening.finalists()]


def test_finalists_are_the_fastest_the_host_may_decide_among() -> None:
    """However much slower it is on the device, since the host may enqueue it faster."""
    found = finalists(GPU, Launch.EAGER)
    assert found[:2] == ["triton::mm 10", "triton::mm 11"]
    assert sorted(found[2:]) == ["aten::addmm 50", "aten::mm 40", "triton::tma 30"]
    # Elsewhere finalists are near the fastest.
    for device, launch in ((GPU, Launch.CUDAGRAPH), (CPU, Launch.EAGER)):
        assert finalists(device, launch) == ["triton::mm 10", "triton::mm 11", "aten::addmm 50"]


def test_a_row_has_the_hosts_times_of_winner_and_library() -> None:
    winner = candidate("triton::mm", 16)
    alone = [outcome(LIBRARY, 50.0, 25.0), outcome(winner, 10.0, 7.0)]
    bare = make_row("addmm m=16", alone, LIBRARY, Method())
    assert bare is not None
    assert (bare.row.evidence.host_us, bare.row.evidence.library_host_us) == (7.0, 25.0)
    region = [outcome(LIBRARY, 60.0, 80.0), outcome(winner, 20.0, 55.0)]
    fused = make_fused_row(bare, region, LIBRARY, Method())
    assert fused is not None
    assert fused.row.evidence.scope is Scope.FUSED
    assert (fused.row.evidence.host_us, fused.row.evidence.library_host_us) == (55.0, 80.0)
    assert {timing.winner: timing.host_us for timing in fused.deciding} == {
        LIBRARY: 80.0,
        winner: 55.0,
    }
