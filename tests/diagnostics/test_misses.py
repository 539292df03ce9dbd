"""What an audit is written as: the misses document, read again, and metrics for Prometheus."""

from __future__ import annotations

import json
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


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a text above zero by name and values of labels."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.value
    }


def test_every_count_is_a_sample(tmp_path: Path) -> None:
    """Labels are digest, reason, and site; a metric is announced once, before its samples.

    Unused rows that are not known have no sample.
    """
    text = expose(
        report_of(
            tmp_path / "a.log",
            *({}, {}, missed("k", "not_in_table")),
            {"event": "benchmark.uncovered", "site": 'a"\\\n\r,}'},
            *({"event": "call.outside", "reason": "beyond", "calls": calls} for calls in (1, 2)),
            {"event": "graph.cached", "run": "s", "digest": "e", "decisions": 0},
            {"event": "graph.foreign", "run": "s", "digest": "e", "compiled_under": "d"},
        )
    )
    assert samples(text) == {
        ("warmup_runs", "d"): 1,
        ("warmup_runs", "e"): 1,
        ("warmup_silent_runs", "e"): 1,
        ("warmup_hits_total", "d"): 2,
        ("warmup_misses_total", "d", "not_in_table"): 1,
        ("warmup_uncovered_total", "d", 'a"\\\\n\\r,}'): 1,
        ("warmup_cached_graphs_total", "e"): 1,
        ("warmup_foreign_graphs_total", "e", "d"): 1,
        ("warmup_outside_total", "d", "beyond"): 2,
    }
    assert "warmup_unused_rows{" not in text
