"""`warmup audit` in its own process: what it prints and when it fails."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.events import Emitter, EventName, JsonLinesSink
from warmup.table import Table
from warmup.table.codec import digest_of, encode

Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]


@pytest.fixture
def warmup(
    run_python: Callable[..., Done],
    tmp_path: Path,
    make_table: Callable[..., Table],
    make_key: Callable[..., str],
) -> Command:
    """``warmup("audit", "bad.jsonl")`` beside t.json, good.jsonl, bad.jsonl and quiet.jsonl."""
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
        sink.close()
    return lambda *words: run_python("-m", "warmup", *words, cwd=tmp_path)


def test_an_audit_is_printed(warmup: Command, make_key: Callable[..., str]) -> None:
    """Counts come first, then each miss with its neighbour, then the rows never used."""
    done = warmup("audit", "bad.jsonl")
    assert (done.returncode, done.stderr, done.stdout.splitlines()) == (
        0,
        "",
        [
            "runs        1 (table digest d1)",
            "hits        1 (1 problems)",
            "misses      1 (not_in_table 1)",
            "uncovered   1 (conv 1)",
            "from cache  0 graphs (0 decisions)",
            "unused rows 1",
            f"miss x1 {make_key(600)} (not_in_table)",
            "    compiled bias_addmm",
            f"    nearest {make_key(560)}",
            "    differs in m: row 560, here 600",
            f"unused {make_key(1024)}",
        ],
    )


def test_an_audit_is_json_on_request(warmup: Command, make_key: Callable[..., str]) -> None:
    """With --json stdout is one document with the same facts."""
    document = json.loads(warmup("audit", "bad.jsonl", "good.jsonl", "--json").stdout)
    names = ("runs", "miss_count", "reasons", "uncovered", "unused", "damaged")
    assert {name: document[name] for name in names} == {
        "runs": 2,
        "miss_count": 1,
        "reasons": {"not_in_table": 1},
        "uncovered": {"conv": 1},
        "unused": [make_key(1024)],
        "damaged": 0,
    }


@pytest.mark.parametrize(
    ("log", "fail_on", "failed"),
    [
        ("good", "miss,uncovered,silent", ""),
        ("bad", "silent", ""),
        ("bad", "miss", "miss"),
        ("bad", "uncovered, miss", "uncovered, miss"),
        ("quiet", "miss,silent", "silent"),
    ],
)
def test_an_audit_fails_on_demand(warmup: Command, log: str, fail_on: str, failed: str) -> None:
    """--fail-on makes what was found exit 1, and says on stderr what it was."""
    done = warmup("audit", f"{log}.jsonl", "--fail-on", fail_on)
    expected = (1, f"audit failed on: {failed}\n") if failed else (0, "")
    assert (done.returncode, done.stderr) == expected


def test_a_failed_audit_is_still_data(warmup: Command) -> None:
    """A failing audit prints its JSON all the same."""
    done = warmup("audit", "bad.jsonl", "--json", "--fail-on", "miss")
    assert (done.returncode, json.loads(done.stdout)["miss_count"]) == (1, 1)


def test_a_silent_run_is_named(warmup: Command) -> None:
    """A run without lookups is named in the text."""
    lines = warmup("audit", "quiet.jsonl").stdout.splitlines()
    assert [line for line in lines if line.startswith("silent runs quiet/")] != []


def test_a_hostile_log_cannot_draw_on_the_terminal(warmup: Command, tmp_path: Path) -> None:
    """Control characters in a logged key do not reach stdout."""
    record = {"event": "lookup.missed", "schema": 1, "run": "r", "pid": 1, "seq": 0}
    line = json.dumps({**record, "key": "\x1b[2Jk", "reason": "\x1b[31mx", "nearest": "\r\x07"})
    (tmp_path / "log").write_text(f"warmup-event {line}\n")
    shown = warmup("audit", "log").stdout.replace("\n", "")
    assert shown.isprintable()
