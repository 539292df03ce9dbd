"""The misses document: canonical when written, every value checked when read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_tables import make_key

from warmup.core.errors import SettingsError
from warmup.serving.audit import AuditReport, MissedProblem, audit, encode_misses, read_misses

PROBLEM: dict[str, Any] = {"key": "k", "kind": "gemm", "reason": "not_in_table", "count": 1}


def report_of(path: Path, *misses: tuple[str, str], tuned: tuple[str, ...] = ()) -> AuditReport:
    """Audit a log with *misses*, each a key and a reason, and keys *tuned* at serving."""
    common = {"schema": 1, "run": "r", "pid": 1, "digest": "d"}
    events = [{"event": "lookup.missed", "key": key, "reason": why} for key, why in misses]
    events += [{"event": "problem.tuned", "key": key} for key in tuned]
    lines = [json.dumps({**event, **common, "seq": i}) for i, event in enumerate(events)]
    path.write_text("".join(f"warmup-event {line}\n" for line in lines))
    return audit([path])


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Misses are counted by key and reason, in natural order of keys, with their kind."""
    launch = "launch triton_poi_fused_mul x=16 args=*bf16 source=3f2a9c0d41b7e865"
    asked = [(make_key(64), "x"), (make_key(8), "x"), (make_key(8), "y"), (make_key(8), "x")]
    report = report_of(tmp_path / "a.log", *asked, (launch, "x"))
    (tmp_path / "m.json").write_text(encode_misses(report))
    assert read_misses(tmp_path / "m.json") == (
        MissedProblem(make_key(8), "gemm", "x", 2),
        MissedProblem(make_key(8), "gemm", "y", 1),
        MissedProblem(make_key(64), "gemm", "x", 1),
        MissedProblem(launch, "launch", "x", 1),
    )


def test_a_problem_tuned_at_serving_was_answered_by_no_row(tmp_path: Path) -> None:
    """Problems that on_miss=tune measured are in the document too, with the reason ``tuned``."""
    document = json.loads(encode_misses(report_of(tmp_path / "a.log", tuned=("k",))))
    assert document["problems"] == [{**PROBLEM, "reason": "tuned"}]


def test_equal_logs_give_equal_documents(tmp_path: Path) -> None:
    """The order of events in a log changes no byte."""
    asked = [("m=2", "x"), ("m=10", "x"), ("m=2", "a")]
    first = encode_misses(report_of(tmp_path / "a.log", *asked))
    assert first == encode_misses(report_of(tmp_path / "b.log", *reversed(asked)))


@given(key=st.text(max_size=40) | st.just("k" * 9000), reason=st.text(max_size=90))
def test_any_logged_miss_gives_a_readable_document(
    tmp_path_factory: pytest.TempPathFactory, key: str, reason: str
) -> None:
    """Any key and reason of a log is in the document, which is accepted by the reader."""
    folder = tmp_path_factory.getbasetemp()
    report = report_of(folder / "fuzzed-misses.log", (key, reason))
    (folder / "fuzzed.json").write_text(encode_misses(report))
    assert len(read_misses(folder / "fuzzed.json")) == 1


def test_a_row_that_could_not_be_used_is_stale() -> None:
    for reason, stale in (
        ("not_in_table", False),
        ("template_changed", True),
        ("choice_rejected", True),
    ):
        assert MissedProblem("k", "gemm", reason, 1).is_stale is stale


def document(**changes: Any) -> str:
    """Return a document with one problem, whose members *changes* replaces or adds."""
    return json.dumps({"schema": 1, "digests": [], "problems": [{**PROBLEM, **changes}]})


def test_a_damaged_document_is_refused_with_its_pointer(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
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
        tmp_path = tmp_path_factory.mktemp("case")
        (tmp_path / "m.json").write_text(text)
        with pytest.raises(SettingsError) as caught:
            read_misses(tmp_path / "m.json")
        assert said in str(caught.value), (text, said)
        assert str(caught.value).isprintable(), (text, said)


def test_a_mutated_document_is_read_or_refused(tmp_path: Path) -> None:
    """Of 700 documents with characters changed, removed and doubled each is one SettingsError."""
    chance = random.Random(20)  # noqa: S311  no secret
    problems = [{**PROBLEM, "key": f"k{number}"} for number in range(4)]
    whole = json.dumps({"schema": 1, "digests": ["d"], "problems": problems}, indent=2)
    refused: list[str] = []
    for _ in range(700):
        text = whole
        for _ in range(chance.randint(1, 3)):
            start = chance.randrange(len(text))
            piece = chance.choice(
                [
                    "",
                    "9" * 5000,
                    "[" * 2000,
                    '"',
                    "\\ud800",
                    "\x00",
                    "NaN",
                    text[start : start + 30] * 2,
                ]
            )
            text = text[:start] + piece + text[start + chance.randint(0, 20) :]
        (tmp_path / "m.json").write_text(text)
        try:
            read_misses(tmp_path / "m.json")
        except SettingsError as error:
            refused.append(str(error))
    assert len(refused) > 500
    assert all(line.isprintable() for line in refused)


def test_a_document_that_cannot_be_read_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("absent.json", ".", "nul\x00"):
        tmp_path = tmp_path_factory.mktemp("case")
        with pytest.raises(SettingsError, match=r"--problems .* cannot be read"):
            read_misses(f"{tmp_path}/{name}")
