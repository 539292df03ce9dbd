"""Audits: the same counts from JSON lines and from server logs, and no crash on any line."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_key, make_table

from warmup.cli.audit import spell
from warmup.core.errors import SettingsError, TableFormatError, TableNotFoundError
from warmup.core.events import Emitter, Event, EventName, JsonLinesSink, Sink, log_event
from warmup.serving.audit import MAX_LINE, AuditReport, Divergence, Miss, audit
from warmup.table.codec import digest_of
from warmup.table.merge import combine
from warmup.table.store import write

MISS: dict[str, Any] = {
    "kind": "gemm",
    "key": "k2",
    "reason": "not_in_table",
    "nearest": "k1",
    "differs": ["m: row 1, here 2"],
    "choice": "bias_addmm",
}
INSTALLED: dict[str, Any] = {"paths": [], "table": "d", "rows": 2, "on_miss": "fallback"}
# What a server with one hit, two misses and one uncovered benchmark emits.
SERVED_EVENTS: tuple[tuple[EventName, dict[str, Any]], ...] = (
    (EventName.INSTALLED, INSTALLED),
    (EventName.HIT, {"kind": "gemm", "key": "k1", "winner": "w"}),
    (EventName.MISSED, MISS),
    (EventName.MISSED, MISS),
    (EventName.UNCOVERED, {"site": "conv"}),
    (EventName.CONTRADICTED, {"option": "o", "expected": "1", "found": "2"}),
    (EventName.CACHED, {"decisions": 2}),
    (EventName.FOREIGN, {"compiled_under": "e", "installed": "d", "refused": False}),
    (EventName.FOREIGN, {"compiled_under": None, "installed": "d", "refused": True}),
    (EventName.SUMMARY, {"hits": 0, "misses": 0, "from_cache": 0, "silent": True}),
)
COUNTED: dict[str, Any] = {
    "uncovered": {"conv": 1},
    "from_cache": 1,
    "cached_decisions": 2,
    "cached_misses": 0,
    "foreign": {"e": 1, "none": 1},
    "outside": {},
}
OF_D = {
    **dict.fromkeys(("silent", "tuned", "changed", "mismatch"), 0),
    "runs": 1,
    "hits": 1,
    "misses": {"not_in_table": 2},
    **COUNTED,
}
SERVED = AuditReport(
    runs=1,
    digests=("d",),
    hits={"k1": 1},
    misses=(Miss("k2", "not_in_table", 2, "k1", ("m: row 1, here 2",), "bias_addmm"),),
    tuned={},
    contradictions=("o: table 1, here 2",),
    silent=(),
    diverged=(),
    unused=None,
    by_digest={"d": OF_D},
    damaged=0,
    **COUNTED,
)


def raw(**changes: Any) -> str:
    record = {"event": "lookup.hit", "schema": 1, "run": "r", "pid": 1, "seq": 0, "time": 0.5}
    text = json.dumps({**record, "digest": "d", "key": "k1", "winner": "w", **changes})
    return text.replace('{"event": ', '{"event":')  # as `Event.to_json` writes it


def missed(key: str = "k2", reason: str = "x", **fields: Any) -> dict[str, Any]:
    return {**MISS, "event": "lookup.missed", "key": key, "reason": reason, **fields}


def happened(name: EventName, **fields: Any) -> dict[str, Any]:
    return {"event": name, **(INSTALLED if name is EventName.INSTALLED else {}), **fields}


def hit(run: str, winner: str = "w1", **fields: Any) -> dict[str, Any]:
    return {"run": run, "key": "k", "winner": winner, **fields}


def audited(path: Path, *events: dict[str, Any], **options: Any) -> AuditReport:
    """Return the audit of a log of *events*, each with its place as its number."""
    lines = [raw(**{"seq": seq, **event}) for seq, event in enumerate(events)]
    path.write_text("".join(f"warmup-event {line}\n" for line in lines))
    return audit([path], **options)


def text_log(path: Path) -> Sink:
    """Return a sink that writes events among the other lines of a server's log."""

    def write_line(event: Event) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write("2026-01-02 INFO uvicorn: GET /healthz 200\n")
            file.write(f"2026-01-02 WARN [w 3] warmup-event {event.to_json()} trace={{7}}\n")
            file.write("warmup: 1 hits, 1 misses\n")

    return write_line


@contextmanager
def package_log(path: Path) -> Iterator[None]:
    """Let the package's own logger write to *path*, with other fields around its lines."""
    logger, handler = logging.getLogger("warmup"), logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s|%(levelname)s|%(message)s|%(process)d"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


def test_every_form_of_a_log_gives_the_same_audit(tmp_path: Path) -> None:
    """JSON lines, a server's log, Python's logging, a pipe; and what is in two of them, once."""
    lines, text, log = (tmp_path / name for name in ("a.jsonl", "server.log", "python.log"))
    sink = JsonLinesSink(lines)
    sink.open()
    with package_log(log):
        emitter = Emitter([sink, text_log(text), log_event], {"digest": "d"}, "r1")
        for name, fields in SERVED_EVENTS:
            emitter.emit(name, **fields)
    sink.close()
    for paths in ([lines], [text], [log], [text, lines], [lines, str(lines)]):
        assert audit(paths) == SERVED, paths
    reader, writer = os.pipe()  # ``warmup audit <(COMMAND)``
    os.write(writer, lines.read_bytes())
    os.close(writer)
    try:
        assert audit([f"/dev/fd/{reader}"]) == SERVED
    finally:
        os.close(reader)


CACHED, OUTSIDE = EventName.CACHED, EventName.OUTSIDE
SILENT: Callable[[AuditReport], Any] = lambda report: [  # noqa: E731  one of a table's columns
    name.split("/")[0] for name in report.silent
]
CHOICES: Callable[[AuditReport], Any] = lambda report: report.diverged  # noqa: E731
# What is logged, what is read of the report, and what that is.
LOGS: dict[str, tuple[list[dict[str, Any]], Callable[[AuditReport], Any], Any]] = {
    "the same numbers in two runs, or two processes of a run, are different events": (
        [{"run": "a"}, {"run": "b"}, {"run": "a", "pid": 2}, {"run": "a", "seq": 0}],
        lambda report: (report.runs, report.hits),
        (3, {"k1": 3}),
    ),
    "misses are counted by key and reason, in natural order": (
        [missed("m=16"), missed("m=2"), missed("m=2", "y"), missed("m=2", "y")],
        lambda report: (
            [(miss.key, miss.reason, miss.count) for miss in report.misses],
            report.reasons,
            report.miss_count,
        ),
        ([("m=2", "x", 1), ("m=2", "y", 2), ("m=16", "x", 1)], {"x": 2, "y": 2}, 4),
    ),
    "a contradiction of many runs is named once": (
        [
            happened(EventName.CONTRADICTED, run=run, option="o", expected="1", found="2")
            for run in "ab"
        ],
        lambda report: report.contradictions,
        ("o: table 1, here 2",),
    ),
    "uncompiled frames are counted over the runs, and are lines of the text": (
        [
            happened(EventName.UNCOMPILED, run=run, frame="f (m.py:3)", reason="no RNN")
            for run in "ab"
        ],
        lambda report: (
            report.uncompiled,
            "uncompiled  x2 f (m.py:3): no RNN" in spell(report, "").splitlines(),
        ),
        ({"f (m.py:3): no RNN": 2}, True),
    ),
    "calls outside are counted up to the last number of each model": (
        [
            happened(OUTSIDE, run=run, reason=reason, said="n=9", calls=calls)
            for run, reason, last in (("a", "x", 8), ("a", "x", 2), ("b", "x", 1), ("b", "y", 1))
            for calls in (1, 2, 4, 8)[: last.bit_length()]
        ],
        lambda report: report.outside,
        {"x": 11, "y": 1},
    ),
    "each table has its own counts": (
        [
            {"run": "a"},
            {"run": "b", "digest": "e"},
            missed(run="b", digest="e"),
            happened(CACHED, run="c", digest="e", decisions=0),
        ],
        lambda report: {
            digest: tuple(one[name] for name in ("runs", "silent", "hits", "misses"))
            for digest, one in report.by_digest.items()
        },
        {"d": (1, 0, 1, {}), "e": (2, 1, 1, {"x": 1})},
    ),
    "decisions of cached graphs break the silence": (
        [happened(EventName.INSTALLED), *(happened(CACHED, decisions=n) for n in (3, 4))],
        lambda report: (report.silent, report.from_cache, report.cached_decisions),
        ((), 2, 7),
    ),
    "a run that was killed after the install is silent": (
        [happened(EventName.INSTALLED)],
        SILENT,
        ["r"],
    ),
    **{
        f"{name} breaks the silence": (
            [happened(EventName.INSTALLED), {**MISS, "event": name}],
            SILENT,
            [],
        )
        for name in (EventName.HIT, EventName.TUNED, EventName.MISSED)
    },
    "no run at all is silent": (
        [],
        lambda report: report.failures(("silent", "miss")),
        ("silent",),
    ),
    "two winners of one key under one table are named with their runs": (
        [hit("a"), hit("b", "w2"), hit("c"), hit("c", "w3", key="other")],
        CHOICES,
        (Divergence("k", "d", {"w1": ("a/1", "c/1"), "w2": ("b/1",)}),),
    ),
    **{
        f"what {name} compiled is compared with the winner of another process": (
            [hit("a"), {**hit("b", "w2"), "event": name, "choice": "w2", "reason": "x"}],
            lambda report: [set(found.choices) for found in report.diverged],
            [{"w1", "w2"}],
        )
        for name in (EventName.MISSED, EventName.TUNED)
    },
    "a fallback to the winner of another process is no divergence": (
        [hit("a"), missed("k", run="b", choice="w1"), missed("k", run="c", choice=None)],
        CHOICES,
        (),
    ),
    "processes that changed their choice alike agree": (
        [hit(run, winner) for run in "ab" for winner in ("w1", "w2")],
        CHOICES,
        (),
    ),
    "ranks with different tables diverged": (
        [hit("a", rank="0"), hit("b", rank="1", digest="e")],
        CHOICES,
        (Divergence(None, None, {"d": ("rank 0 (a/1)",), "e": ("rank 1 (b/1)",)}),),
    ),
    "ranks that were all restarted with another table agree": (
        [hit(rank + digest, rank=rank, digest=digest) for rank in "01" for digest in "de"],
        CHOICES,
        (),
    ),
}


def test_what_an_audit_says_of_a_log(tmp_path: Path) -> None:
    for case, (events, read, expected) in LOGS.items():
        assert read(audited(tmp_path / "a.log", *events)) == expected, case


DAMAGED = (
    'warmup-event {"event":"lookup.hit"',
    'warmup-event {"event":"lookup.hit","schema":2}',
    *(
        f"warmup-event {raw(**changes)}"
        for changes in (
            {"schema": 2},
            {"seq": None},
            {"pid": 1e400},
            {"event": "table.installed"},
            *(
                {"event": "graph.cached", "decisions": wrong}
                for wrong in (1e400, 10**4299, True, "2")
            ),
            {"event": "lookup.missed"},
            *({"event": "call.outside", "reason": "x", "calls": n} for n in (10**4299, -1)),
            {"event": "table.installed", "table": "d", "paths": "abc"},
            {"digest": 7},
            {"rank": None},
            {"key": "k" * MAX_LINE},
        )
    ),
    "warmup-event " + raw(digest="D").replace('"D"', "[" * 900 + "]" * 900),
    "warmup-event {" + '"a":[' * 100_000,
    "warmup-event " + raw(pid=1).replace('"pid": 1', '"pid": ' + "9" * 5000),
    raw()[:60],
    raw()[:-1],
)
OTHER = (
    "",
    "warmup: 3 hits",
    "the warmup-event marker in prose",
    '{"event":"request.finished","status":200}',
    '{"message":"hello"}',
    "\x00" * 50,
    "x" * (3 * MAX_LINE),
)


def test_a_damaged_event_is_counted_and_loses_no_other(tmp_path: Path) -> None:
    """Not as a run nor as a lookup; a line of other programs is neither an event nor damage."""
    log = tmp_path / "server.log"
    for line, damaged in (*((line, 1) for line in DAMAGED), *((line, 0) for line in OTHER)):
        log.write_text(f"{raw(seq=1)}\n{line}\nwarmup-event {raw(seq=2)}\n", encoding="utf-8")
        report = audit([log])
        assert (report.damaged, report.runs, report.hits) == (damaged, 1, {"k1": 2}), line[:90]
    # Bytes that are no UTF-8, on other lines and around an event.
    log.write_bytes(b"\xff\xfe\n" + f"\xe9 warmup-event {raw()} fin\xe9e\n".encode("latin-1"))
    assert audit([log]).hits == {"k1": 1}
    # The last line of a killed process, and what the next process writes behind it.
    log.write_text(raw(seq=1) + "\n" + raw(seq=2)[:70])
    assert (audit([log]).hits, audit([log]).damaged) == ({"k1": 1}, 1)
    sink = JsonLinesSink(log)
    sink.open()
    Emitter([sink], {"digest": "d"}, "r1").emit(EventName.MISSED, **MISS)
    sink.close()
    assert (audit([log]).damaged, audit([log]).miss_count) == (1, 1)


def test_any_key_or_path_in_a_log_is_taken(tmp_path: Path) -> None:
    """A log may name anything: a key is reported, and a path that is no table is not read."""
    for key in ("9" * 5000, "²", "m=²", "", "\n", "\ud800", "1a1"):
        report = audited(tmp_path / "a.log", *map(missed, ("mm m=5", key, "1")))
        assert {miss.key for miss in report.misses} == {"mm m=5", key, "1"}, key[:9]
    os.mkfifo(tmp_path / "fifo")
    for path in ("nul\x00.json", "n" * 5000, "/proc", "", str(tmp_path / "fifo"), "/dev/zero"):
        report = audited(tmp_path / "a.log", happened(EventName.INSTALLED, paths=[path]))
        assert report.unused is None, path[:9]


EVERYTHING = {**MISS, **INSTALLED, "decisions": 2, "site": "s", "option": "o", "expected": "1"}
EVERYTHING |= {"found": "2"}


def test_a_mutated_log_is_audited(tmp_path: Path) -> None:
    """Of 5,000 events with bytes changed, removed and doubled none stops the audit of the rest."""
    chance = random.Random(20)  # noqa: S311  no secret
    lines: list[bytes] = []
    for seq in range(5000):
        fields = {**EVERYTHING, "calls": 3, "rank": "0", "event": chance.choice([*EventName])}
        line = bytearray(raw(**fields, seq=seq, run="m").encode())
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
    assert json.loads(spell(report, ".json"))["damaged"] == report.damaged
    assert spell(report, ".prom")
    assert "".join(spell(report, "").split("\n")).isprintable()


def test_a_log_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Neither waits for the writer of a FIFO nor reads a device."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name, said in (
        ("absent.log", "cannot be read"),
        (".", "cannot be read"),
        ("fifo", "is no regular file"),
        ("device", "is no regular file"),
    ):
        with pytest.raises(SettingsError, match=said):
            audit([tmp_path / name])


def test_rows_that_no_run_asked_for_are_unused(tmp_path: Path) -> None:
    """They are those of the files that the log names, where these are as they were installed."""
    table = make_table()
    halves = [make_table({key: row}) for key, row in table.rows.items()]
    for name, each in (("t", table), ("1", halves[0]), ("2", halves[1])):
        write(tmp_path / f"{name}.json", each)

    def installed(run: str, *names: str, digest: str) -> dict[str, Any]:
        paths = [str(tmp_path / name) for name in names]
        return happened(EventName.INSTALLED, run=run, paths=paths, table=digest)

    whole = digest_of(table)
    log, own = tmp_path / "a.log", [installed(run, "t.json", digest=whole) for run in "abc"]
    first, second = (make_key(560), make_key(1024))
    used, cached = hit("a", key=first), happened(CACHED, run="c", decisions=3)
    for events, unused in (
        ([own[0], used], (second,)),
        ([own[0], missed(first, "choice_rejected", run="a")], (second,)),
        ([own[0], used, own[1], hit("b", key=second)], ()),
        ([installed("a", "1.json", "2.json", digest=digest_of(combine(halves)[0])), used], second),
        ([installed("a", "t.json", digest="0" * 64), used], None),  # it changed since
        ([own[0], used, own[2], cached], None),  # a cached graph names no rows
        ([own[0], used, own[2], cached, own[1], hit("b", key=second)], ()),
    ):
        expected = (unused,) if isinstance(unused, str) else unused
        assert audited(log, *events).unused == expected, events
    # A named table is taken whatever was installed.
    assert audited(log, table=tmp_path / "t.json").unused == (first, second)
    assert audited(log, own[0], used, own[2], cached, table=tmp_path / "t.json").unused is None
    (tmp_path / "damaged.json").write_text("{")
    for name, error in (("absent", TableNotFoundError), ("damaged", TableFormatError)):
        with pytest.raises(error):
            audited(log, table=tmp_path / f"{name}.json")
