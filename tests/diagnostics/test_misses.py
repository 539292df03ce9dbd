"""What an audit is written as: the misses document, read again, and metrics for Prometheus."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_tables import make_key

from warmup.core.errors import SettingsError
from warmup.serving.audit import (
    AuditReport,
    MissedProblem,
    audit,
    encode_misses,
    expose,
    read_misses,
)

PROBLEM: dict[str, Any] = {"key": "k", "kind": "gemm", "reason": "not_in_table", "count": 1}
_LABEL = r'[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(
    r"# HELP warmup_[a-z_]+ [^\n]+"
    r"|# TYPE warmup_[a-z_]+ (?:counter|gauge)"
    rf"|(?P<name>warmup_[a-z_]+)(?:\{{(?P<labels>{_LABEL}(?:,{_LABEL})*)\}})? (?P<value>[0-9]+)"
)


def report_of(path: Path, *events: dict[str, Any]) -> AuditReport:
    """Audit a log of *events*: fields that are not given are those of a hit of k under digest d."""
    hit = {"event": "lookup.hit", "schema": 1, "run": "r", "pid": 1, "digest": "d", "key": "k"}
    lines = [json.dumps({**hit, "seq": i, **event}) for i, event in enumerate(events)]
    path.write_text("".join(f"warmup-event {line}\n" for line in lines))
    return audit([path])


def missed(key: str, reason: str) -> dict[str, Any]:
    return {"event": "lookup.missed", "key": key, "reason": reason}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Misses are counted by key and reason, in natural order of keys, with their kind.

    The order of events in the log changes no byte; a problem that was tuned at serving was
    answered by no row, and is in the document too.
    """
    launch = "launch triton_poi_fused_mul x=16 args=*bf16 source=3f2a9c0d41b7e865"
    asked = [(make_key(64), "x"), (make_key(8), "x"), (make_key(8), "y"), (make_key(8), "x")]
    events = [missed(*each) for each in (*asked, (launch, "x"))]
    text = encode_misses(report_of(tmp_path / "a.log", *events))
    assert text == encode_misses(report_of(tmp_path / "b.log", *reversed(events)))
    (tmp_path / "m.json").write_text(text)
    assert read_misses(tmp_path / "m.json") == (
        MissedProblem(make_key(8), "gemm", "x", 2),
        MissedProblem(make_key(8), "gemm", "y", 1),
        MissedProblem(make_key(64), "gemm", "x", 1),
        MissedProblem(launch, "launch", "x", 1),
    )
    tuned = report_of(tmp_path / "a.log", {"event": "problem.tuned"})
    assert json.loads(encode_misses(tuned))["problems"] == [{**PROBLEM, "reason": "tuned"}]
    stale = {"not_in_table": False, "template_changed": True, "choice_rejected": True}
    for reason, is_stale in stale.items():  # a row that could not be used is stale
        assert MissedProblem("k", "gemm", reason, 1).is_stale is is_stale


@given(key=st.text(max_size=40) | st.just("k" * 9000), reason=st.text(max_size=90))
def test_any_logged_miss_gives_a_readable_document(
    tmp_path_factory: pytest.TempPathFactory, key: str, reason: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    report = report_of(folder / "fuzzed-misses.log", missed(key, reason))
    (folder / "fuzzed.json").write_text(encode_misses(report))
    assert len(read_misses(folder / "fuzzed.json")) == 1


def document(**changes: Any) -> str:
    """Return a document with one problem, whose members *changes* replaces or adds."""
    return json.dumps({"schema": 1, "digests": [], "problems": [{**PROBLEM, **changes}]})


def test_a_damaged_document_is_refused_with_its_pointer(tmp_path: Path) -> None:
    for text, said in (
        ("", "empty"),
        ("[]", "at /: expected an object"),
        ('{"schema": 2, "digests": [], "problems": []}', "at /schema: "),
        ('{"schema": 1, "digests": [], "problems": {}}', "at /problems: expected an array"),
        ('{"schema": 1, "digests": [1], "problems": []}', "at /digests/0: expected a string"),
        (document(count=0), "at /problems/0/count: "),
        (document(count=10**16), "at /problems/0/count: "),
        (document(key="\n"), "at /problems/0/key: "),
        (document(key="k" * 5000), "at /problems/0/key: "),
        (document(kind="pad"), "at /problems/0/kind: the key is of kind gemm"),
        (document(kind="\x1b[2J"), "at /problems/0/kind: "),
        (document(extra=1), "at /problems/0/extra: unknown field"),
        ('{"schema": 1, "digests": [], "problems": [[]]}', "at /problems/0: expected an object"),
        ('{"a":' * 100_000, "at /a: unknown field"),
        ("[" * 100_000, "at /: expected an object"),
        (document().replace("}]", "}, " + json.dumps(PROBLEM) + "]"), "problem 1 is a repetition"),
    ):
        (tmp_path / "m.json").write_text(text)
        with pytest.raises(SettingsError) as caught:
            read_misses(tmp_path / "m.json")
        assert said in str(caught.value), (text[:99], said)
        assert str(caught.value).isprintable(), (text[:99], said)
    for name in ("absent.json", ".", "nul\x00"):
        with pytest.raises(SettingsError, match=r"--problems .* cannot be read"):
            read_misses(f"{tmp_path}/{name}")


def test_a_mutated_document_is_read_or_refused(tmp_path: Path) -> None:
    """Of 700 documents with characters changed, removed and doubled each is one SettingsError."""
    chance = random.Random(20)  # noqa: S311  no secret
    problems = [{**PROBLEM, "key": f"k{number}"} for number in range(4)]
    whole = json.dumps({"schema": 1, "digests": ["d"], "problems": problems}, indent=2)
    pieces = ["", "9" * 5000, "[" * 2000, '"', "\\ud800", "\x00", "NaN", None]
    refused: list[str] = []
    for _ in range(700):
        text = whole
        for _ in range(chance.randint(1, 3)):
            start = chance.randrange(len(text))
            piece = chance.choice(pieces)
            piece = text[start : start + 30] * 2 if piece is None else piece
            text = text[:start] + piece + text[start + chance.randint(0, 20) :]
        (tmp_path / "m.json").write_text(text)
        try:
            read_misses(tmp_path / "m.json")
        except SettingsError as error:
            refused.append(str(error))
    assert len(refused) > 500
    assert all(line.isprintable() for line in refused)


def samples(text: str) -> dict[str, int]:
    """Return the samples of a text by name and labels; each line must match the format."""
    found: dict[str, int] = {}
    for line in text.split("\n")[:-1]:
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        if match["name"]:
            found[line.rpartition(" ")[0]] = int(match["value"])
    return found


def test_every_count_is_a_sample(tmp_path: Path) -> None:
    """Labels are digest, reason, and site; a metric is announced once, before its samples.

    Unused rows that are not known have no sample.
    """
    text = expose(
        report_of(
            tmp_path / "a.log",
            *({}, {}, missed("k", "not_in_table")),
            {"event": "benchmark.uncovered", "site": "conv"},
            *({"event": "call.outside", "reason": "beyond", "calls": calls} for calls in (1, 2)),
            {"event": "graph.cached", "run": "s", "digest": "e", "decisions": 0},
            {"event": "graph.foreign", "run": "s", "digest": "e", "compiled_under": "d"},
        )
    )
    assert {name: value for name, value in samples(text).items() if value} == {
        'warmup_runs{digest="d"}': 1,
        'warmup_runs{digest="e"}': 1,
        'warmup_silent_runs{digest="e"}': 1,
        'warmup_hits_total{digest="d"}': 2,
        'warmup_misses_total{digest="d",reason="not_in_table"}': 1,
        'warmup_uncovered_total{digest="d",site="conv"}': 1,
        'warmup_cached_graphs_total{digest="e"}': 1,
        'warmup_foreign_graphs_total{digest="e",compiled_under="d"}': 1,
        'warmup_outside_total{digest="d",reason="beyond"}': 2,
    }
    assert "warmup_unused_rows" not in samples(text)
    names = [
        line.split()[2] if line.startswith("#") else re.split(r"[{ ]", line)[0]
        for line in text.splitlines()
    ]
    grouped = [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
    assert len(grouped) == len(set(grouped))


@given(word=st.text(max_size=20))
def test_any_label_of_a_log_is_escaped(tmp_path_factory: pytest.TempPathFactory, word: str) -> None:
    path = tmp_path_factory.getbasetemp() / "labels.log"
    report = report_of(path, {"event": "benchmark.uncovered", "site": word})
    assert sum(name.startswith("warmup_uncovered") for name in samples(expose(report))) == 1


def test_the_reference_parser_reads_it(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    report = report_of(tmp_path / "a.log", {"event": "benchmark.uncovered", "site": 'a"\\\n\r,}'})
    families = list(parser.text_string_to_metric_families(expose(report)))
    (sample,) = next(family.samples for family in families if family.name == "warmup_uncovered")
    assert (sample.labels["site"], sample.value) == ('a"\\\\n\\r,}', 1)
