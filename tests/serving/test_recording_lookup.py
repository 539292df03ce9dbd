"""`RecordingLookup`: rows that other processes of a recorded program have measured meanwhile."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sample_tables import make_table

from warmup.core.errors import MissReason
from warmup.core.events import Emitter, Event, EventName, Scheduled
from warmup.core.files import DeviceLock
from warmup.core.rows import Row, Winner
from warmup.core.trial import Tuned
from warmup.keys.kind import ProblemOfKey
from warmup.keys.question import CallsQuestion, Question
from warmup.table.schema import OnMiss
from warmup.table.store import write
from warmup.tuning.program import RecordingLookup
from warmup.tuning.progress import Progress
from warmup.tuning.report import Observer

KEY, ROW = next(iter(make_table().rows.items()))


class Recording:
    """A lookup over an empty table on disk, whose tuner answers with ``measured``."""

    def __init__(self, folder: Path, measured: Row | None) -> None:
        self.path, self.table, self.asked = folder / "t.json", make_table(), []
        self.events: list[Event] = []
        empty = replace(self.table, rows={})
        write(self.path, empty)
        progress = Progress(
            path=self.path,
            table=empty,
            replaces=False,
            observer=Observer(),
            can_search=False,
            given_up={},
            measured_peaks=lambda: None,
        )

        def measure(question: Question) -> Tuned | None:
            self.asked.append(question.problem.key)
            return None if measured is None else Tuned(question.problem.key, measured, ())

        tuner: Any = SimpleNamespace(measure=measure)
        self.lookup = RecordingLookup(
            rows={},
            on_miss=OnMiss.FALLBACK,
            emitter=Emitter([self.events.append]),
            tuner=tuner,
            on_tuned=progress.save,
            retunes=progress.must_retune,
            progress=progress,
            device_lock=DeviceLock(folder / "turn"),
        )

    def measure(self, winner: Winner = ROW.winner) -> Winner | None:
        calls = {winner: lambda _number: None}
        return self.lookup.measure(CallsQuestion(ProblemOfKey(KEY), winner, calls))

    def find(self) -> Winner | MissReason:
        return self.lookup.find(ProblemOfKey(KEY))


def test_a_row_of_another_process_is_taken(tmp_path: Path) -> None:
    """It was written after the lookup had missed it: it is a hit, and nothing is measured."""
    recording = Recording(tmp_path, measured=None)
    assert recording.find() is MissReason.NOT_IN_TABLE
    write(recording.path, recording.table)
    assert recording.measure() == ROW.winner
    assert (recording.asked, [event.name for event in recording.events]) == ([], [EventName.HIT])


def test_a_row_whose_winner_is_not_offered_is_measured(tmp_path: Path) -> None:
    """The other process had another list of candidates."""
    own = replace(ROW, winner=replace(ROW.winner, uid="another"))
    recording = Recording(tmp_path, measured=own)
    recording.find()
    write(recording.path, recording.table)
    assert recording.measure(own.winner) == own.winner
    assert recording.asked == [KEY]


def test_what_cannot_be_measured_is_a_miss(tmp_path: Path) -> None:
    recording = Recording(tmp_path, measured=None)
    assert recording.measure() is None
    (event,) = recording.events
    assert (event.name, event.fields["key"]) == (EventName.MISSED, KEY)


@pytest.mark.filterwarnings("ignore::warmup.core.errors.ContradictionWarning")
def test_what_the_program_does_not_fuse_is_measured_apart_when_it_is_asked_again(
    tmp_path: Path,
) -> None:
    """Once: the layer after the first one takes the row that was measured apart."""
    recording = Recording(tmp_path, measured=ROW)
    recording.measure()
    recording.lookup.emit(Scheduled(KEY, expected=True, found=False))
    assert recording.find() is MissReason.NOT_IN_TABLE
    assert recording.measure() == ROW.winner
    recording.lookup.emit(Scheduled(KEY, expected=True, found=False))
    assert recording.find() == ROW.winner
    assert (recording.asked, recording.lookup.apart) == ([KEY, KEY], {KEY})


def test_one_turn_at_a_time(tmp_path: Path) -> None:
    """A holder takes its turn again at once; another waits until it is over."""
    mine, others = DeviceLock(tmp_path / "turn"), DeviceLock(tmp_path / "turn")
    order: list[str] = []

    def measure() -> None:
        with others.taken():
            order.append("other")

    with mine.taken(), mine.taken():
        thread = threading.Thread(target=measure)
        thread.start()
        thread.join(0.2)
        order.append("mine")
    thread.join()
    assert order == ["mine", "other"]
