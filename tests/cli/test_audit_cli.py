"""`warmup audit`: what it prints and when it fails, once in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from own_processes import Done
from sample_tables import make_key, make_table

from warmup.core.events import Emitter, EventName, JsonLinesSink
from warmup.table.codec import digest_of, encode

Command = Callable[..., Done]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder with t.json, good.jsonl, bad, quiet and half.jsonl."""
    table = make_table()
    (tmp_path / "t.json").write_text(encode(table))
    for name in ("good", "bad", "quiet"):
        sink = JsonLinesSink(tmp_path / f"{name}.jsonl")
        sink.open()
        emitter = Emitter([sink], {"digest": "d1"}, name)
        emitter.emit(EventName.INSTALLED, paths=["t.json"], table=digest_of(table))
        if name != "quiet":
            emitter.emit(EventName.HIT, key=make_key(560), winner="w")
        if name == "bad":
            emitter.emit(
                EventName.MISSED,
                key=make_key(600),
                reason="not_in_table",
                nearest=make_key(560),
                differs=["m: row 560, here 600"],
                choice="bias_addmm",
            )
            emitter.emit(EventName.UNCOVERED, site="conv")
        emitter.emit(EventName.SUMMARY)
        sink.close()
    good = (tmp_path / "good.jsonl").read_text()
    (tmp_path / "half.jsonl").write_text(good + good[:60])
    return tmp_path


@pytest.fixture
def warmup(logs: Path, run_main: Command) -> Command:
    """``warmup("audit", "bad.jsonl")`` beside the logs, within this process."""
    del logs
    return run_main


def test_an_audit_is_printed(warmup: Command) -> None:
    cached = "0 graphs from cache (0 decisions)"
    done = warmup("audit", "bad.jsonl")
    assert (done.returncode, done.stderr, done.stdout.splitlines()) == (
        0,
        "",
        [
            f"warmup d1: 1 hit, 1 miss, 1 uncovered, {cached}, 1 row unused",
            "runs        1 (table digest d1)",
            "hits        1 (1 problem): answered by a row of the table",
            "misses      1 (not_in_table 1): no row answered, inductor's default was compiled",
            "            not_in_table: build this bucket, or pad to one that was built",
            "uncovered   1 (conv 1): decided by no row kind (docs/explanation/coverage.md)",
            "from cache  0 graphs (0 decisions): compiled by an earlier run",
            "unused rows 1: no run asked for them",
            f"miss x1 {make_key(600)} (not_in_table)",
            "    compiled bias_addmm",
            f"    nearest row {make_key(560)}",
            "    differs in m: row 560, here 600",
            f"unused {make_key(1024)}",
        ],
    )


def test_an_audit_fails_on_demand(warmup: Command) -> None:
    for log, fail_on, failed in (
        ("good", "miss,uncovered,silent,diverged", ""),
        ("bad", "silent", ""),
        ("bad", "miss", "miss"),
        ("bad", "uncovered, miss", "uncovered, miss"),
        ("quiet", "miss,silent", "silent"),
        ("half", "miss,silent", ""),
        ("half", "damaged,miss", "damaged"),
    ):
        done = warmup("audit", f"{log}.jsonl", "--fail-on", fail_on)
        expected = (1, f"audit failed on: {failed}\n") if failed else (0, "")
        assert (done.returncode, done.stderr) == expected, log
    document = json.loads(warmup("audit", "bad.jsonl", "good.jsonl", "--json").stdout)
    counts = {name: document[name] for name in ("runs", "miss_count", "unused", "damaged")}
    assert counts == {"runs": 2, "miss_count": 1, "unused": [make_key(1024)], "damaged": 0}
    assert (document["reasons"], document["uncovered"]) == ({"not_in_table": 1}, {"conv": 1})


def test_a_log_without_an_event_or_a_summary_is_named(warmup: Command, tmp_path: Path) -> None:
    """Without an event the exit code is 1; a run that a signal ended has no summary, and counts."""
    (tmp_path / "server.log").write_text("INFO serving\n")
    done = warmup("audit", "server.log")
    assert (done.returncode, done.stdout != "") == (1, True)
    assert done.stderr.startswith("no event in server.log: name an audit log")
    lines = (tmp_path / "good.jsonl").read_text().splitlines()
    (tmp_path / "killed.jsonl").write_text("".join(f"{line}\n" for line in lines[:-1]))
    shown = warmup("audit", "killed.jsonl", "--fail-on", "silent")
    assert shown.returncode == 0
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("no summary"))
    assert line.startswith("no summary  good/")
    assert "no summary" not in warmup("audit", "good.jsonl").stdout


def test_a_hostile_log_cannot_draw_on_the_terminal(warmup: Command, tmp_path: Path) -> None:
    record = {"event": "lookup.missed", "schema": 1, "run": "r", "pid": 1, "seq": 0}
    line = json.dumps({**record, "key": "\x1b[2Jk", "reason": "\x1b[31mx", "nearest": "\r\x07"})
    (tmp_path / "log").write_text(f"warmup-event {line}\n")
    assert warmup("audit", "log").stdout.replace("\n", "").isprintable()


def test_an_audit_is_written_to_a_file_whole(warmup: Command, tmp_path: Path) -> None:
    """With --out the file is replaced at once, is readable for others, and stdout stays empty.

    Its name says the form: Prometheus metrics, JSON or text.
    """
    (tmp_path / "m.prom").write_text("old")
    before = {path.name for path in tmp_path.iterdir()}
    assert warmup("audit", "bad.jsonl", "--out", "m.prom").stdout == ""
    lines = (tmp_path / "m.prom").read_text().splitlines()
    assert 'warmup_misses_total{digest="d1",reason="not_in_table"} 1' in lines
    assert (tmp_path / "m.prom").stat().st_mode & 0o777 == 0o644
    assert {path.name for path in tmp_path.iterdir()} == before
    for words in (("--out", "m.json"), ("--json", "--out", "m.txt")):
        warmup("audit", "bad.jsonl", *words)
        assert json.loads((tmp_path / words[-1]).read_text())["miss_count"] == 1, words
    warmup("audit", "bad.jsonl", "--out", "m.txt")
    assert (tmp_path / "m.txt").read_text().startswith("warmup d1: ")
