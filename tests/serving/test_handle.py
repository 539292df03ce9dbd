"""`Report` and `IdleTimer`: what a line of counts says, and when that line is logged."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from warmup.core.events import Emitter, EventName
from warmup.serving.handle import IdleTimer, Report

SOON_S = 0.05
LATE_S = 3600.0
CLEAN = Report(
    digest="0" * 64,
    hits={"k": 1},
    misses={},
    miss_reasons={},
    uncovered={},
    tuned=0,
    from_cache=1,
    cached_decisions=2,
    cached_misses=0,
    foreign={},
    unused=("r",),
)


def test_whatever_no_row_answered_is_not_clean() -> None:
    assert CLEAN.is_clean
    for changes in (
        {"misses": {"k": 1}},
        {"cached_misses": 1},
        {"uncovered": {"conv": 1}},
        {"foreign": {"none": 1}},
        {"hits": {}, "cached_decisions": 0},
    ):
        assert not replace(CLEAN, **changes).is_clean


def test_the_line_says_what_to_do_about_misses_and_silence() -> None:
    """A selection was asked; a measurement of another feature is no question."""
    missed = replace(CLEAN, misses={"k": 12}, miss_reasons={"dynamic_dim": 12}, advised=("x: do",))
    assert "12 misses (dynamic_dim 12)" in str(missed)
    assert str(missed).endswith("[x: do]")
    for site, is_silent in (("select:qlinear_unary", False), ("triton.autotune", True)):
        report = replace(CLEAN, hits={}, cached_decisions=0, uncovered={site: 1})
        assert report.is_silent is is_silent, site
        assert ("SILENT" in str(report)) is is_silent, site


class Reports:
    """Counts reports, and says when there is another one."""

    def __init__(self) -> None:
        self.count = 0
        self.arrived = threading.Event()

    def __call__(self) -> None:
        self.count += 1
        self.arrived.set()


def test_a_burst_is_reported_once_when_the_last_compile_has_ended() -> None:
    reports = Reports()
    timer = IdleTimer(reports, SOON_S)
    emitter = Emitter([timer])
    timer.disturb(1)
    assert not reports.arrived.wait(6 * SOON_S)
    for _ in range(20):
        emitter.emit(EventName.HIT)
    timer.disturb(-1)
    assert reports.arrived.wait(20)
    time.sleep(4 * SOON_S)
    assert reports.count == 1


def test_a_report_now_is_for_events_that_somebody_reads() -> None:
    """Once; not of an install alone, nor where the log has no handler yet, nor after the close."""
    reports, wanted = Reports(), []
    timer = IdleTimer(reports, LATE_S, is_wanted=lambda: bool(wanted))
    emitter = Emitter([timer])
    for is_wanted, event, count in (
        (False, EventName.HIT, 0),
        (True, EventName.INSTALLED, 0),
        (True, EventName.HIT, 1),
    ):
        wanted[:] = [True] * is_wanted
        emitter.emit(event)
        timer.report_now()
        timer.report_now()
        assert reports.count == count
    emitter.emit(EventName.HIT)
    waiting = [thread for thread in threading.enumerate() if thread.name == "warmup-idle"]
    assert waiting != []
    assert all(thread.daemon for thread in waiting)  # none keeps a process alive
    timer.close()
    emitter.emit(EventName.SUMMARY)
    timer.report_now()
    for thread in waiting:
        thread.join(20)
    assert (reports.count, any(thread.is_alive() for thread in waiting)) == (1, False)
