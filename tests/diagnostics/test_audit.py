"""Audits: the same counts from JSON lines and from server logs, and no crash on any line."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_tables import make_key, make_table

from warmup.cli.audit import spell
from warmup.core.errors import SettingsError, TableFormatError, TableNotFoundError
from warmup.core.events import Emitter, Event, EventName, JsonLinesSink, Sink
from warmup.serving.audit import FAILURES, AuditReport, Counts, Divergence, Miss, audit
from warmup.serving.logs import MAX_LINE
from warmup.table.codec import digest_of
from warmup.table.merge import combine
from warmup.table.schema import Table
from warmup.table.store import write

FIELDS = (
    "event schema run pid seq digest paths table key reason differs nearest choice site option "
    "decisions rank winner misses calls"
)
MISS: dict[str, Any] = {
    "kind": "gemm",
    "key": "k2",
    "reason": "not_in_table",
    "nearest": "k1",
    "differs": ["m: row 1, here 2"],
    "choice": "bias_addmm",
}
INSTALLED: dict[str, Any] = {"paths": [], "table": "d", "rows": 2, "on_miss": "fallback"}
SUMMARY: dict[str, Any] = {"hits": 0, "misses": 0, "from_cache": 0, "silent": True}
CACHED: dict[str, Any] = {"decisions": 2}
VALUES = st.sampled_from([float("inf"), float("nan"), 10**40, -1, "\x00", "\ud800"]) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@contextmanager
def run_to(*sinks: Sink, run: str = "r1") -> Iterator[Emitter]:
    """Give an emitter of one run of the table with digest d."""
    yield Emitter(list(sinks), {"digest": "d"}, run)
    for sink in sinks:
        if isinstance(sink, JsonLinesSink):
            sink.close()


def jsonl(path: Path) -> JsonLinesSink:
    sink = JsonLinesSink(path)
    sink.open()
    return sink


def text_log(path: Path) -> Sink:
    """Return a sink that writes events among the other lines of a server's log."""

    def write_line(event: Event) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write("2026-01-02 INFO uvicorn: GET /healthz 200\n")
            file.write(f"2026-01-02 WARN [w 3] warmup-event {event.to_json()} trace={{7}}\n")
            file.write("warmup: 1 hits, 1 misses\n")

    return write_line


def serve(emitter: Emitter) -> None:
    """Emit what a server with one hit, two misses and one uncovered benchmark emits."""
    emitter.emit(EventName.INSTALLED, **INSTALLED)
    emitter.emit(EventName.HIT, kind="gemm", key="k1", winner="w")
    emitter.emit(EventName.MISSED, **MISS)
    emitter.emit(EventName.MISSED, **MISS)
    emitter.emit(EventName.UNCOVERED, site="conv")
    emitter.emit(EventName.CONTRADICTED, option="o", expected="1", found="2")
    emitter.emit(EventName.CACHED, **CACHED)
    emitter.emit(EventName.FOREIGN, compiled_under="e", installed="d", refused=False)
    emitter.emit(EventName.FOREIGN, compiled_under=None, installed="d", refused=True)
    emitter.emit(EventName.SUMMARY, **SUMMARY)


SERVED = AuditReport(
    runs=1,
    digests=("d",),
    hits={"k1": 1},
    misses=(Miss("k2", "not_in_table", 2, "k1", ("m: row 1, here 2",), "bias_addmm"),),
    uncovered={"conv": 1},
    tuned={},
    contradictions=("o: table 1, here 2",),
    from_cache=1,
    cached_decisions=2,
    cached_misses=0,
    foreign={"e": 1, "none": 1},
    outside={},
    silent=(),
    diverged=(),
    unused=None,
    by_digest={
        "d": Counts(
            runs=1,
            silent=0,
            hits=1,
            tuned=0,
            misses={"not_in_table": 2},
            uncovered={"conv": 1},
            from_cache=1,
            cached_decisions=2,
            cached_misses=0,
            foreign={"e": 1, "none": 1},
            outside={},
        )
    },
    damaged=0,
)


def raw(**changes: Any) -> str:
    """Return the line of a hit with changed fields."""
    record = {"event": "lookup.hit", "schema": 1, "run": "r", "pid": 1, "seq": 0, "time": 0.5}
    return json.dumps({**record, "digest": "d", "key": "k1", "winner": "w", **changes})


def test_json_lines_are_audited(tmp_path: Path) -> None:
    with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
        serve(emitter)
    assert audit([tmp_path / "a.jsonl"]) == SERVED


def test_a_text_log_says_the_same(tmp_path: Path) -> None:
    """Events are found among other log lines, with text before and after them."""
    with run_to(text_log(tmp_path / "server.log")) as emitter:
        serve(emitter)
    assert audit([tmp_path / "server.log"]) == SERVED


def test_an_event_in_both_files_counts_once(tmp_path: Path) -> None:
    """A run that wrote JSON lines and a text log is counted once from both."""
    with run_to(jsonl(tmp_path / "a.jsonl"), text_log(tmp_path / "server.log")) as emitter:
        serve(emitter)
    assert audit([tmp_path / "server.log", tmp_path / "a.jsonl"]) == SERVED


def test_a_log_named_twice_counts_once(tmp_path: Path) -> None:
    with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
        serve(emitter)
    assert audit([tmp_path / "a.jsonl", str(tmp_path / "a.jsonl")]) == SERVED


def test_what_python_logging_writes_is_audited(tmp_path: Path) -> None:
    """Events are found in the package's own log lines, with other fields around them."""
    from warmup.core.events import log_event

    logger = logging.getLogger("warmup")
    handler = logging.FileHandler(tmp_path / "server.log")
    handler.setFormatter(logging.Formatter("%(asctime)s|%(levelname)s|%(message)s|%(process)d"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with run_to(log_event) as emitter:
            serve(emitter)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()
    assert audit([tmp_path / "server.log"]) == SERVED


def test_runs_are_told_apart(tmp_path: Path) -> None:
    """The same numbers in two runs, or in two processes of one run, are different events."""
    lines = [raw(run="a"), raw(run="b"), raw(run="a", pid=2), raw(run="a")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    report = audit([tmp_path / "a.jsonl"])
    assert (report.runs, report.hits) == (3, {"k1": 3})


def test_each_digest_is_named_once(tmp_path: Path) -> None:
    lines = [raw(run="a", digest="e"), raw(run="b", digest="d"), raw(run="c", digest="e")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    assert audit([tmp_path / "a.jsonl"]).digests == ("d", "e")


def test_reasons_of_one_key_are_counted_apart(tmp_path: Path) -> None:
    with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
        for key, reason in [("m=16", "x"), ("m=2", "x"), ("m=2", "y"), ("m=2", "y")]:
            emitter.emit(EventName.MISSED, **{**MISS, "key": key, "reason": reason})
    report = audit([tmp_path / "a.jsonl"])
    found = [(miss.key, miss.reason, miss.count) for miss in report.misses]
    assert found == [("m=2", "x", 1), ("m=2", "y", 2), ("m=16", "x", 1)]


def test_misses_are_summed_by_reason(tmp_path: Path) -> None:
    with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
        for key, reason in [("a", "x"), ("b", "x"), ("b", "y")]:
            emitter.emit(EventName.MISSED, **{**MISS, "key": key, "reason": reason})
    report = audit([tmp_path / "a.jsonl"])
    assert (report.reasons, report.miss_count) == ({"x": 2, "y": 1}, 3)


def test_a_damaged_event_is_counted(tmp_path_factory: pytest.TempPathFactory) -> None:
    for line in (
        'warmup-event {"event":"lookup.hit"',
        "warmup-event {",
        'warmup-event {"event":"lookup.hit","schema":2}',
        "warmup-event " + raw(schema=2),
        "warmup-event " + raw(seq=None),
        "warmup-event " + raw(pid="x"),
        "warmup-event " + raw(pid=1e400),
        "warmup-event " + raw(event="table.installed"),
        "warmup-event " + raw(event="graph.cached"),
        "warmup-event " + raw(event="graph.cached", decisions=1e400),
        "warmup-event " + raw(event="lookup.missed"),
        "warmup-event " + raw(event="graph.cached", decisions=10**4299),
        "warmup-event " + raw(event="graph.cached", decisions=True),
        "warmup-event " + raw(event="graph.cached", decisions="2"),
        "warmup-event " + raw(event="call.outside", reason="x", calls=10**4299),
        "warmup-event " + raw(event="call.outside", reason="x", calls=-1),
        "warmup-event " + raw(event="table.installed", table="d", paths="abc"),
        "warmup-event " + raw(event=["lookup.hit"]),
        "warmup-event " + raw(digest=7),
        "warmup-event " + raw(rank=None),
        "warmup-event " + raw(digest="D").replace('"D"', "[" * 900 + "]" * 900),
        "warmup-event " + raw(key="k" * MAX_LINE),
        "warmup-event {" + '"a":[' * 100_000,
        "warmup-event " + raw(pid=1).replace('"pid": 1', '"pid": ' + "9" * 5000),
        raw()[:60],
        raw()[:-1],
    ):
        tmp_path = tmp_path_factory.mktemp("case")
        log = f"{raw(seq=1)}\n{line}\n{raw(seq=2)}\n"
        (tmp_path / "server.log").write_text(log.replace('{"event": ', '{"event":'))
        report = audit([tmp_path / "server.log"])
        assert (report.damaged, report.hits) == (1, {"k1": 2}), line


def test_a_damaged_event_is_no_event(tmp_path: Path) -> None:
    """A hit without key counts neither as a run nor as a lookup."""
    line = raw().replace('"key": "k1", ', "")
    (tmp_path / "server.log").write_text(f"warmup-event {line}\n")
    report = audit([tmp_path / "server.log"])
    assert (report.damaged, report.runs, report.hits) == (1, 0, {})


def test_other_lines_are_skipped(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Lines without an event, and events of other programs, are neither events nor damage."""
    for line in (
        "",
        "warmup: 3 hits",
        "warmup-event",
        "the warmup-event marker in prose",
        '{"event":"request.finished","status":200}',
        '{"message":"hello"}',
        "{",
        "\x00" * 50,
        "é" * 50,
    ):
        tmp_path = tmp_path_factory.mktemp("case")
        (tmp_path / "server.log").write_text(f"{line}\n", encoding="utf-8")
        report = audit([tmp_path / "server.log"])
        assert (report.damaged, report.runs) == (0, 0), line


def test_a_log_need_not_be_utf8(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 on other lines, or around an event, lose no event."""
    line = f"\xe9t\xe9 warmup-event {raw()} fin\xe9e\n".encode("latin-1")
    (tmp_path / "server.log").write_bytes(b"\xff\xfe\n" + line)
    assert audit([tmp_path / "server.log"]).hits == {"k1": 1}


def test_a_log_may_end_in_the_middle_of_an_event(tmp_path: Path) -> None:
    """The last line of a killed process is damage, its other events count."""
    (tmp_path / "a.jsonl").write_text((raw(seq=1) + "\n" + raw(seq=2)[:70]).replace('t": ', 't":'))
    report = audit([tmp_path / "a.jsonl"])
    assert (report.hits, report.damaged) == ({"k1": 1}, 1)


def test_an_endless_line_is_read_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(f"{'x' * (3 * MAX_LINE)}\nwarmup-event {raw()}\n")
    assert audit([tmp_path / "server.log"]).hits == {"k1": 1}


def test_any_key_in_a_log_is_reported(tmp_path_factory: pytest.TempPathFactory) -> None:
    for case, key in {
        "long": "9" * 5000,
        "superscript": "²",
        "inside": "m=²",
        "empty": "",
        "newline": "\n",
        "surrogate": "\ud800",
        "digits": "1a1",
    }.items():
        tmp_path = tmp_path_factory.mktemp("case")
        lines = [
            raw(event="lookup.missed", key=missed, reason="x", seq=seq)
            for seq, missed in enumerate(["mm m=5", key, "1"])
        ]
        (tmp_path / "a.log").write_text("".join(f"warmup-event {line}\n" for line in lines))
        assert {miss.key for miss in audit([tmp_path / "a.log"]).misses} == {"mm m=5", key, "1"}, (
            case
        )


def test_any_table_path_in_a_log_is_looked_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    for case, path in {
        "nul": "nul\x00.json",
        "long": "n" * 5000,
        "folder": "/proc",
        "empty": "",
    }.items():
        tmp_path = tmp_path_factory.mktemp("case")
        line = raw(event="table.installed", paths=[path], table="d")
        (tmp_path / "a.log").write_text(f"warmup-event {line}\n")
        assert audit([tmp_path / "a.log"]).unused is None, case


@given(event=st.sampled_from(EventName), field=st.sampled_from(FIELDS.split()), value=VALUES)
def test_no_value_in_a_log_breaks_the_audit(
    tmp_path_factory: pytest.TempPathFactory, event: EventName, field: str, value: Any
) -> None:
    """An event with any JSON value in any field is counted, for a run or not, or damaged."""
    everything = {**MISS, **INSTALLED, **CACHED, "site": "s", "option": "o", "expected": "1"}
    line = raw(**{**everything, "found": "2", "event": event, field: value})
    path = tmp_path_factory.getbasetemp() / "fuzzed.log"
    path.write_text(f"warmup-event {line}\n", encoding="utf-8")
    report = audit([path])
    assert (report.damaged, report.runs + report.failed + report.mismatch) in {(0, 1), (1, 0)}


def test_an_event_behind_half_a_line_is_not_lost(tmp_path: Path) -> None:
    """A process that was killed in a line loses that event, and the next process none."""
    log = tmp_path / "a.jsonl"
    log.write_text(raw(seq=1).replace('t": ', 't":')[:70])
    with run_to(jsonl(log)) as emitter:
        serve(emitter)
    report = audit([log])
    assert (report.damaged, report.miss_count) == (1, 2)


def test_a_mutated_log_is_audited(tmp_path: Path) -> None:
    """Of 5,000 events with bytes changed, removed and doubled none stops the audit of the rest."""
    chance = random.Random(20)  # noqa: S311  no secret
    everything = {**MISS, **INSTALLED, **CACHED, "site": "s", "option": "o", "expected": "1"}
    lines: list[bytes] = []
    for seq in range(5000):
        name = chance.choice([*EventName])
        fields = {**everything, "found": "2", "calls": 3, "rank": "0"}
        line = bytearray(raw(**{**fields, "event": name, "seq": seq, "run": "m"}).encode())
        for _ in range(chance.randint(1, 3)):
            start = chance.randrange(40, len(line))
            kind = chance.randrange(3)
            if kind == 0:
                line[start] = chance.choice(b'0123456789"[]{}:,\\\x00\xffeE-.')
            elif kind == 1:
                del line[start : start + chance.randint(1, 20)]
            else:
                line[start:start] = line[start : start + 20] * chance.choice([1, 1, 1, 300])
        lines.append(b"warmup-event " + bytes(line).replace(b"\n", b""))
    (tmp_path / "a.log").write_bytes(b"\n".join([*lines, f"warmup-event {raw()}".encode()]))
    report = audit([tmp_path / "a.log"])
    assert report.hits["k1"] == 1
    assert report.damaged > 1000
    assert "".join(_text_of(report)).isprintable()


def _text_of(report: AuditReport) -> list[str]:
    """Return the audit as the command prints it, and check that its other forms can be made."""
    assert json.loads(spell(report, ".json"))["damaged"] == report.damaged
    assert spell(report, ".prom")
    return spell(report, "").split("\n")


def _calls_and_memory(path: Path) -> tuple[int, int]:
    """Return the number of calls that an audit of *path* makes, and the peak of its memory."""
    calls = 0

    def count(_frame: Any, event: str, _value: Any) -> None:
        nonlocal calls
        calls += event == "call"

    tracemalloc.start()
    sys.setprofile(count)
    try:
        audit([path])
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return calls, peak


KEY = "addmm m=M n=1280 k=3420 bf16 a=row b=col bias=1d out=bf16 | epilogue=none"
WINNER = "triton::triton_mm(BLOCK_K=64,BLOCK_M=64,BLOCK_N=128,num_stages=3,num_warps=4)"


def test_an_audit_takes_linear_time_and_three_times_the_file(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Twice the lines are twice the calls, and the memory is bounded by the size of the log."""
    for case, make in {
        "one key": lambda key, seq: raw(key="one", winner=WINNER, seq=seq),
        "many keys": lambda key, seq: raw(key=key, winner=WINNER, seq=seq),
        "misses": lambda key, seq: raw(
            **{**MISS, "event": "lookup.missed", "key": key, "seq": seq}
        ),
        "damaged": lambda key, seq: raw(seq=None, key=key + str(seq)),
        "text": lambda key, seq: key + "x" * (seq % 300),
    }.items():
        tmp_path = tmp_path_factory.mktemp("case")
        counted = []
        for lines in (1500, 3000):
            path = tmp_path / f"{lines}.log"
            events = (make(KEY.replace("M", str(number)), number) for number in range(lines))
            path.write_text("".join(f"warmup-event {event}\n" for event in events))
            calls, peak = _calls_and_memory(path)
            assert peak < 3 * path.stat().st_size + 500_000, case
            counted.append(calls)
        assert counted[1] < 2.3 * counted[0], case


def test_a_log_that_may_never_end_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither waits for the writer of a FIFO nor reads a device."""
    for kind in ("fifo", "device"):
        tmp_path = tmp_path_factory.mktemp("case")
        path = tmp_path / "log"
        os.mkfifo(path) if kind == "fifo" else path.symlink_to("/dev/zero")
        with pytest.raises(SettingsError, match="is no regular file"):
            audit([path])


def test_the_pipe_of_a_shell_is_read(tmp_path: Path) -> None:
    """``warmup audit <(COMMAND)`` reads what the command prints."""
    del tmp_path
    reader, writer = os.pipe()
    os.write(writer, f"warmup-event {raw()}\n".encode())
    os.close(writer)
    try:
        assert audit([f"/dev/fd/{reader}"]).hits == {"k1": 1}
    finally:
        os.close(reader)


def test_a_table_path_in_a_log_that_is_no_file_is_not_read(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A log may name anything; the unused rows are unknown then."""
    for path in ("fifo", "/dev/zero"):
        tmp_path = tmp_path_factory.mktemp("case")
        os.mkfifo(tmp_path / "fifo")
        line = raw(event="table.installed", paths=[str(tmp_path / path)], table="d")
        (tmp_path / "a.log").write_text(f"warmup-event {line}\n")
        assert audit([tmp_path / "a.log"]).unused is None, path


def test_a_log_that_cannot_be_read_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("absent.log", "."):
        tmp_path = tmp_path_factory.mktemp("case")
        with pytest.raises(SettingsError, match="cannot be read"):
            audit([tmp_path / name])


def installed(path: Path, table: Table, *used: str, run: str = "r1", log: Path) -> None:
    """Emit a run that installed *table* from *path* and hit the keys *used*."""
    with run_to(jsonl(log), run=run) as emitter:
        fields = {**INSTALLED, "paths": [str(path)], "table": digest_of(table)}
        emitter.emit(EventName.INSTALLED, **fields)
        for key in used:
            emitter.emit(EventName.HIT, key=key, winner="w")


def test_rows_never_used_are_found_in_the_installed_file(tmp_path: Path) -> None:
    """The table that the log names is read and its unasked rows are listed."""
    table = make_table()
    write(tmp_path / "t.json", table)
    installed(tmp_path / "t.json", table, make_key(560), log=tmp_path / "a.jsonl")
    assert audit([tmp_path / "a.jsonl"]).unused == (make_key(1024),)


def test_rows_never_used_are_found_in_all_files_of_a_union(tmp_path: Path) -> None:
    first, second = make_table().rows.items()
    tables = [make_table(dict([first])), make_table(dict([second]))]
    paths = [tmp_path / "1.json", tmp_path / "2.json"]
    for path, table in zip(paths, tables, strict=True):
        write(path, table)
    with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
        digest = digest_of(combine(tables)[0])
        emitter.emit(EventName.INSTALLED, paths=[str(path) for path in paths], table=digest)
        emitter.emit(EventName.HIT, key=make_key(560), winner="w")
    assert audit([tmp_path / "a.jsonl"]).unused == (make_key(1024),)


def test_unused_are_the_rows_that_no_run_used(tmp_path: Path) -> None:
    table = make_table()
    write(tmp_path / "t.json", table)
    installed(tmp_path / "t.json", table, make_key(560), run="a", log=tmp_path / "a.jsonl")
    installed(tmp_path / "t.json", table, make_key(1024), run="b", log=tmp_path / "a.jsonl")
    assert audit([tmp_path / "a.jsonl"]).unused == ()


def test_graphs_from_a_cache_leave_unused_unknown(tmp_path: Path) -> None:
    """Their decisions name no rows: any row may be in use, unless each was asked for by a run."""
    table = make_table()
    write(tmp_path / "t.json", table)
    log = tmp_path / "a.jsonl"
    installed(tmp_path / "t.json", table, make_key(560), run="a", log=log)
    with run_to(jsonl(log), run="b") as emitter:
        emitter.emit(EventName.INSTALLED, **INSTALLED)
        emitter.emit(EventName.CACHED, decisions=3)
    assert audit([log], table=tmp_path / "t.json").unused is None
    installed(tmp_path / "t.json", table, make_key(1024), run="c", log=log)
    assert audit([log], table=tmp_path / "t.json").unused == ()


def test_a_row_that_was_asked_for_is_not_unused(tmp_path: Path) -> None:
    table = make_table()
    write(tmp_path / "t.json", table)
    with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
        fields = {**INSTALLED, "paths": [str(tmp_path / "t.json")], "table": digest_of(table)}
        emitter.emit(EventName.INSTALLED, **fields)
        missed = {**MISS, "key": make_key(560), "reason": "choice_rejected"}
        emitter.emit(EventName.MISSED, **missed)
    assert audit([tmp_path / "a.jsonl"]).unused == (make_key(1024),)


def test_a_table_that_changed_since_leaves_unused_unknown(tmp_path: Path) -> None:
    write(tmp_path / "t.json", make_table({}))
    installed(tmp_path / "t.json", make_table(), log=tmp_path / "a.jsonl")
    assert audit([tmp_path / "a.jsonl"]).unused is None


def test_a_named_table_is_taken_whatever_was_installed(tmp_path: Path) -> None:
    write(tmp_path / "t.json", make_table())
    (tmp_path / "a.jsonl").write_text("")
    report = audit([tmp_path / "a.jsonl"], table=tmp_path / "t.json")
    assert report.unused == (make_key(560), make_key(1024))


def test_a_named_table_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(TableNotFoundError):
        audit([tmp_path / "a.jsonl"], table=tmp_path / "absent.json")


def test_a_named_table_must_be_whole(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(TableFormatError):
        audit([tmp_path / "a.jsonl"], table=tmp_path / "t.json")


def test_a_run_without_lookups_is_silent(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A run without a decision of its own or of a cached graph is silent, ended or killed."""
    for names in (
        ("table.installed",),
        ("table.installed", "run.summary"),
        ("table.installed", "graph.cached"),
    ):
        tmp_path = tmp_path_factory.mktemp("case")
        with run_to(jsonl(tmp_path / "a.jsonl"), run="quiet") as emitter:
            for name in names:
                emitter.emit(EventName(name), **INSTALLED, **SUMMARY, decisions=0)
        (silent,) = audit([tmp_path / "a.jsonl"]).silent
        assert silent.startswith("quiet/"), names


def test_a_run_served_from_cache_is_not_silent(tmp_path: Path) -> None:
    """Graphs from inductor's cache are counted with their decisions, which break the silence."""
    with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
        emitter.emit(EventName.INSTALLED, **INSTALLED)
        emitter.emit(EventName.CACHED, decisions=3)
        emitter.emit(EventName.CACHED, decisions=4)
    report = audit([tmp_path / "a.jsonl"])
    assert (report.silent, report.from_cache, report.cached_decisions) == ((), 2, 7)


def test_any_lookup_breaks_the_silence(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in (EventName.HIT, EventName.TUNED, EventName.MISSED):
        tmp_path = tmp_path_factory.mktemp("case")
        with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
            emitter.emit(EventName.INSTALLED, **INSTALLED)
            emitter.emit(name, **MISS)
        assert audit([tmp_path / "a.jsonl"]).silent == (), name


def test_one_silent_run_among_others_is_named(tmp_path: Path) -> None:
    for run in ("loud", "quiet"):
        with run_to(jsonl(tmp_path / f"{run}.jsonl"), run=run) as emitter:
            emitter.emit(EventName.INSTALLED, **INSTALLED)
            if run == "loud":
                emitter.emit(EventName.HIT, key="k1", winner="w")
    report = audit([tmp_path / "loud.jsonl", tmp_path / "quiet.jsonl"])
    assert [name.split("/")[0] for name in report.silent] == ["quiet"]


def test_tuned_problems_are_counted(tmp_path: Path) -> None:
    with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
        emitter.emit(EventName.TUNED, key="k1", winner="w")
    assert audit([tmp_path / "a.jsonl"]).tuned == {"k1": 1}


def test_a_contradiction_of_many_runs_is_told_once(tmp_path: Path) -> None:
    for run in ("a", "b"):
        with run_to(jsonl(tmp_path / "a.jsonl"), run=run) as emitter:
            emitter.emit(EventName.CONTRADICTED, option="o", expected="1", found="2")
    assert audit([tmp_path / "a.jsonl"]).contradictions == ("o: table 1, here 2",)


def test_an_audit_fails_on_what_it_found_and_was_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for wanted, failed in (
        ((), ()),
        (("miss",), ("miss",)),
        (("uncovered", "miss"), ("uncovered", "miss")),
        (("silent",), ()),
        (("silent", "miss"), ("miss",)),
    ):
        tmp_path = tmp_path_factory.mktemp("case")
        with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
            serve(emitter)
        assert audit([tmp_path / "a.jsonl"]).failures(wanted) == failed


def test_an_audit_without_any_run_fails_on_silence(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("GET / 200\n")
    assert audit([tmp_path / "server.log"]).failures(("silent", "miss")) == ("silent",)


def test_a_clean_audit_fails_on_nothing(tmp_path: Path) -> None:
    with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
        emitter.emit(EventName.HIT, key="k1", winner="w")
    assert audit([tmp_path / "a.jsonl"]).failures(FAILURES) == ()


def test_a_cached_graph_with_misses_is_no_clean_audit(tmp_path: Path) -> None:
    with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
        emitter.emit(EventName.CACHED, decisions=3, misses=2)
    report = audit([tmp_path / "a.jsonl"])
    assert (report.cached_misses, report.failures(("miss",))) == (2, ("miss",))


def test_calls_outside_are_counted_up_to_the_last_that_was_told(tmp_path: Path) -> None:
    counted = {"r1": [("beyond", 8), ("beyond", 2)], "r2": [("beyond", 1), ("between", 1)]}
    for run, models in counted.items():
        with run_to(jsonl(tmp_path / "a.jsonl"), run=run) as emitter:
            for reason, last in models:
                for calls in (1, 2, 4, 8)[: last.bit_length()]:
                    emitter.emit(EventName.OUTSIDE, reason=reason, said="n=9", calls=calls)
    assert audit([tmp_path / "a.jsonl"]).outside == {"beyond": 11, "between": 1}


def test_uncompiled_frames_are_counted_with_their_reason(tmp_path: Path) -> None:
    """Over the runs; each is a line of the text."""
    for run in ("r1", "r2"):
        with run_to(jsonl(tmp_path / "log.jsonl"), run=run) as emitter:
            emitter.emit(EventName.UNCOMPILED, frame="f (m.py:3)", reason="no RNN")
    report = audit([tmp_path / "log.jsonl"])
    assert report.uncompiled == {"f (m.py:3): no RNN": 2}
    assert "uncompiled  x2 f (m.py:3): no RNN" in spell(report, "").splitlines()


def test_calls_outside_are_no_misses(tmp_path: Path) -> None:
    """Calls outside fail an audit on request, and do not make a run less silent."""
    with run_to(jsonl(tmp_path / "a.jsonl")) as emitter:
        emitter.emit(EventName.OUTSIDE, reason="beyond", said="n=9", calls=1)
    report = audit([tmp_path / "a.jsonl"])
    assert report.failures(("miss", "uncovered", "diverged")) == ()
    assert report.failures(("silent", "outside")) == ("silent", "outside")


def test_each_table_has_its_own_counts(tmp_path: Path) -> None:
    lines = [
        raw(run="a", digest="d"),
        raw(run="b", digest="e", seq=1),
        raw(run="b", digest="e", seq=2, event="lookup.missed", reason="x"),
        raw(run="c", digest="e", event="graph.cached", decisions=0),
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines).replace('{"event": ', '{"event":'))
    counts = audit([tmp_path / "a.jsonl"]).by_digest
    found = {digest: (c.runs, c.silent, c.hits, c.misses) for digest, c in counts.items()}
    assert found == {"d": (1, 0, 1, {}), "e": (2, 1, 1, {"x": 1})}


def decided(path: Path, *events: tuple[str, EventName, str, str | None], **common: str) -> Path:
    """Write the log of (run, event, key, choice) under the digest d."""
    for number, (run, name, key, choice) in enumerate(events):
        word = "choice" if name is EventName.MISSED else "winner"
        fields = {"key": key, word: choice, "reason": "x", "pid": 1, "seq": number, "run": run}
        with path.open("a") as file:
            file.write(f"warmup-event {raw(event=name, **{**fields, **common})}\n")
    return path


def test_processes_that_chose_differently_diverged(tmp_path: Path) -> None:
    """The same key under the same table with two winners names each choice and its runs."""
    log = decided(
        tmp_path / "a.log",
        ("a", EventName.HIT, "k", "w1"),
        ("b", EventName.HIT, "k", "w2"),
        ("c", EventName.HIT, "k", "w1"),
        ("c", EventName.HIT, "other", "w3"),
    )
    assert audit([log]).diverged == (Divergence("k", "d", {"w1": ("a/1", "c/1"), "w2": ("b/1",)}),)


def test_what_was_compiled_counts_whoever_chose_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A fallback or a choice tuned at serving is compared with the winner of another process."""
    for name in (EventName.MISSED, EventName.TUNED):
        tmp_path = tmp_path_factory.mktemp("case")
        log = decided(tmp_path / "a.log", ("a", EventName.HIT, "k", "w1"), ("b", name, "k", "w2"))
        (found,) = audit([log]).diverged
        assert set(found.choices) == {"w1", "w2"}, name


def test_a_miss_that_compiled_the_winner_is_no_divergence(tmp_path: Path) -> None:
    """A hit here and a fallback there to the same library call run the same kernel."""
    log = decided(
        tmp_path / "a.log",
        ("a", EventName.HIT, "k", "aten::mm"),
        ("b", EventName.MISSED, "k", "aten::mm"),
        ("c", EventName.MISSED, "k", None),
    )
    assert audit([log]).diverged == ()


def test_processes_that_changed_their_choice_alike_agree(tmp_path: Path) -> None:
    both = [(run, EventName.HIT, "k", winner) for run in "ab" for winner in ("w1", "w2")]
    assert audit([decided(tmp_path / "a.log", *both)]).diverged == ()


def test_other_tables_may_choose_otherwise(tmp_path: Path) -> None:
    log = decided(tmp_path / "a.log", ("a", EventName.HIT, "k", "w1"))
    decided(log, ("b", EventName.HIT, "k", "w2"), digest="e")
    assert audit([log]).diverged == ()


def test_ranks_with_different_tables_diverged(tmp_path: Path) -> None:
    log = decided(tmp_path / "a.log", ("a", EventName.HIT, "k", "w1"), rank="0")
    decided(log, ("b", EventName.HIT, "k", "w1"), rank="1", digest="e")
    expected = Divergence(None, None, {"d": ("rank 0 (a/1)",), "e": ("rank 1 (b/1)",)})
    assert audit([log]).diverged == (expected,)


def test_ranks_that_were_all_restarted_with_another_table_agree(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for rank in "01":
        for digest in "de":
            run = f"{rank}{digest}"
            decided(log, (run, EventName.HIT, "k", "w1"), rank=rank, digest=digest)
    assert audit([log]).diverged == ()


def test_replicas_without_a_rank_may_have_different_tables(tmp_path: Path) -> None:
    log = decided(tmp_path / "a.log", ("a", EventName.HIT, "k", "w1"))
    decided(log, ("b", EventName.HIT, "k", "w1"), digest="e")
    assert audit([log]).failures(("diverged",)) == ()


def test_events_of_a_feature_that_left_are_skipped(tmp_path: Path) -> None:
    """A log of an earlier warmup, of JSON lines or of marked lines, is read without damage."""
    log = decided(tmp_path / "a.log", ("a", EventName.HIT, "k", "w1"))
    retired = log.read_text(encoding="utf-8").replace("lookup.hit", "lookup.predicted")
    lines = [line.partition(" ")[2] for line in retired.splitlines()]
    log.write_text("\n".join([log.read_text("utf-8"), retired, *lines]), encoding="utf-8")
    report = audit([log])
    assert (dict(report.hits), report.damaged, report.misses) == ({"k": 1}, 0, ())
