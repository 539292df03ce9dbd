"""Events: numbered once, delivered to every sink, one whole line each."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

import pytest
from own_processes import run_together

from warmup.core.errors import SettingsError
from warmup.core.events import (
    EVENT_SCHEMA,
    Emitter,
    Event,
    EventName,
    JsonLinesSink,
    log_event,
)

WRITER = """
import sys
from pathlib import Path
from warmup.core.events import Emitter, EventName, JsonLinesSink
# go
sink = JsonLinesSink(Path(sys.argv[1]))
sink.open()
emitter = Emitter([sink], run=sys.argv[2])
for index in range(int(sys.argv[3])):
    emitter.emit(EventName.HIT, key="k" * (index % 3000), winner="é")
sink.close()
"""


def test_threads_share_one_sequence_and_sinks_see_it_in_order() -> None:
    seen: list[int] = []
    emitter = Emitter([lambda event: seen.append(event.seq)])

    def emit() -> None:
        for _ in range(200):
            emitter.emit(EventName.UNCOVERED, site="here")

    threads = [threading.Thread(target=emit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == list(range(1600))


def test_a_broken_sink_is_detached_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """A sink that raises is called once, which is logged; the others get every event."""
    before, after, calls = list[Event](), list[Event](), list[Event]()

    def broken(event: Event) -> None:
        calls.append(event)
        raise OSError(28, "No space left on device")

    emitter = Emitter([before.append, broken, after.append])
    for site in ("one", "two"):
        emitter.emit(EventName.UNCOVERED, site=site)
    assert (len(before), len(calls), len(after)) == (2, 1, 2)
    assert [("No space left" in record.message) for record in caplog.records] == [True]


def test_the_json_of_an_event_is_complete() -> None:
    event = Emitter([], {"digest": "abc"}, run="r").emit(EventName.HIT, key="k", winner="a\n\u2028")
    assert (len(event.to_json().splitlines()), event.to_json().isascii()) == (1, True)
    record = json.loads(event.to_json())
    assert record == {
        "event": "lookup.hit",
        "schema": EVENT_SCHEMA,
        "run": "r",
        "pid": os.getpid(),
        "seq": 0,
        "time": round(event.time, 6),
        "digest": "abc",
        "key": "k",
        "winner": "a\n\u2028",
    }


def test_what_needs_attention_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Misses and contradictions are warnings, the rest information; each has the marker."""
    attention = {EventName.MISSED, EventName.CONTRADICTED}
    caplog.set_level(logging.INFO, "warmup")
    for name in (EventName.HIT, EventName.INSTALLED, EventName.SUMMARY, *attention):
        caplog.clear()
        event = Emitter([log_event]).emit(name)
        (record,) = caplog.records
        assert record.levelname == ("WARNING" if name in attention else "INFO"), name
        assert record.message == f"warmup-event {event.to_json()}"


def test_processes_that_share_a_file_keep_lines_whole(tmp_path: Path) -> None:
    """Four processes writing at once lose no event and break no line."""
    path = tmp_path / "audit.jsonl"
    processes = run_together(WRITER, [[str(path), f"run{n}", "1500"] for n in range(4)])
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    lines = path.read_text(encoding="ascii").splitlines()
    records = [json.loads(line) for line in lines if line]
    found = sorted((record["run"], record["seq"]) for record in records)
    assert found == [(f"run{n}", seq) for n in range(4) for seq in range(1500)]


def test_a_log_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a missing folder or at a folder, and where a disk takes half of an event."""
    for place in ("absent/audit.jsonl", "."):
        with pytest.raises(SettingsError, match="WARMUP_AUDIT_LOG"):
            JsonLinesSink(tmp_path / place).open()
    sink, write = JsonLinesSink(tmp_path / "a.jsonl"), os.write
    sink.open()
    monkeypatch.setattr(os, "write", lambda number, line: write(number, line[:10]))
    with pytest.raises(OSError, match="a part of an event could not be written"):
        sink(Emitter([]).emit(EventName.UNCOVERED, site="x"))


def test_half_a_line_swallows_no_event(tmp_path: Path) -> None:
    """What a killed process left of a line is ended before the next event, in a kept-open file."""
    path = tmp_path / "a.jsonl"
    sink = JsonLinesSink(path)
    sink.open()
    emitter = Emitter([sink], run="r")
    emitter.emit(EventName.UNCOVERED, site="1")
    with path.open("ab") as file:
        file.write(b'{"event":"lookup.missed","sch')
    emitter.emit(EventName.UNCOVERED, site="2")
    emitter.emit(EventName.UNCOVERED, site="3")
    sink.close()
    lines = path.read_text().splitlines()
    assert lines[1] == '{"event":"lookup.missed","sch'
    assert [json.loads(line)["site"] for line in (lines[0], *lines[2:])] == ["1", "2", "3"]


def test_an_event_after_closing_is_appended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compile may end after its table was closed; no descriptor stays open."""
    monkeypatch.chdir(tmp_path)
    sink = JsonLinesSink(Path("a.jsonl"))
    sink.open()
    sink.close()
    monkeypatch.chdir("/")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  counts what is open
    Emitter([sink], run="r").emit(EventName.UNCOVERED, site="late")
    assert json.loads((tmp_path / "a.jsonl").read_text())["site"] == "late"
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
