"""The sleeping kernel ahead of timed calls, with torch's kernel and events replaced: no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from warmup.measuring import clock as headstart

torch = pytest.importorskip("torch")


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
    monkeypatch.setattr(headstart, "_sleep", cycles.append)
    monkeypatch.setattr(headstart, "_cycles_per_us", lambda _: 2.0)
    return cycles


def run(*answers: bool, ahead: headstart.Headstart | None = None) -> int:
    """Return how often calls are enqueued behind *ahead*, while events give *answers*."""
    enqueued: list[None] = []
    ahead = ahead or headstart.Headstart(torch.device("cuda"), 50.0)
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
    ahead = headstart.Headstart(torch.device("cuda"), 50.0)
    run(True, False, ahead=ahead)
    run(False, ahead=ahead)
    assert sleeps == [100, 200, 200]


def test_the_sleep_is_doubled_three_times_at_most(sleeps: list[int]) -> None:
    """Calls that cannot all be in the queue, such as those of more kernels than it holds, end."""
    ahead = headstart.Headstart(torch.device("cuda"), 50.0)
    run(True, True, True, ahead=ahead)
    run(ahead=ahead)
    assert sleeps == [100, 200, 400, 800, 800]
