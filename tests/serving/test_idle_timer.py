"""`IdleTimer`: one report after each burst of compiles, none while a compile runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from warmup.core.events import Emitter, EventName
from warmup.serving.handle import IdleTimer

SOON_S = 0.05
LATE_S = 3600.0


class Reports:
    """Counts reports, and says when there is another one."""

    def __init__(self) -> None:
        self.count = 0
        self.arrived = threading.Event()

    def __call__(self) -> None:
        """Count a report."""
        self.count += 1
        self.arrived.set()


@pytest.fixture
def reports() -> Iterator[Reports]:
    return Reports()


def test_a_burst_is_reported_once(reports: Reports) -> None:
    timer = IdleTimer(reports, SOON_S)
    emitter = Emitter([timer])
    for _ in range(20):
        timer.compile_started()
        emitter.emit(EventName.HIT)
        timer.compile_ended()
    assert reports.arrived.wait(20)
    time.sleep(4 * SOON_S)
    assert reports.count == 1


def test_a_compile_is_waited_for(reports: Reports) -> None:
    """However long it takes; its end begins the wait."""
    timer = IdleTimer(reports, SOON_S)
    timer.compile_started()
    assert not reports.arrived.wait(6 * SOON_S)
    timer.compile_ended()
    assert reports.arrived.wait(20)


def test_a_report_can_be_asked_for(reports: Reports) -> None:
    """At once, and once: without an event since then there is nothing to report."""
    timer = IdleTimer(reports, LATE_S)
    Emitter([timer]).emit(EventName.HIT)
    timer.report_now()
    timer.report_now()
    assert reports.count == 1


def test_an_install_alone_is_not_reported(reports: Reports) -> None:
    timer = IdleTimer(reports, LATE_S)
    Emitter([timer]).emit(EventName.INSTALLED)
    timer.report_now()
    assert reports.count == 0


def test_what_nobody_would_read_is_not_waited_for(reports: Reports) -> None:
    """Without a handler of the log there is no thread; one that comes later is seen."""
    wanted: list[bool] = []
    timer = IdleTimer(reports, LATE_S, is_wanted=lambda: bool(wanted))
    emitter = Emitter([timer])
    emitter.emit(EventName.HIT)
    timer.report_now()
    assert reports.count == 0
    wanted.append(True)
    emitter.emit(EventName.HIT)
    timer.report_now()
    assert reports.count == 1


def test_after_the_close_nothing_is_reported(reports: Reports) -> None:
    """The exit has its own sentence; the thread ends."""
    timer = IdleTimer(reports, LATE_S)
    emitter = Emitter([timer])
    emitter.emit(EventName.HIT)
    timer.close()
    emitter.emit(EventName.SUMMARY)
    timer.report_now()
    assert reports.count == 0


def test_the_thread_keeps_no_process_alive(reports: Reports) -> None:
    timer = IdleTimer(reports, LATE_S)
    Emitter([timer]).emit(EventName.HIT)
    waiting = [thread for thread in threading.enumerate() if thread.name == "warmup-idle"]
    assert waiting != []
    assert all(thread.daemon for thread in waiting)
    timer.close()
    for thread in waiting:
        thread.join(20)
    assert not any(thread.is_alive() for thread in waiting)
