"""Audits as metrics: valid for every reader of the format, whatever is in the logs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.serving.audit import AuditReport, audit
from warmup.serving.counters import expose

_LABEL = r'[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"'
LINE = re.compile(
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


def samples(text: str) -> dict[str, int]:
    """Return the samples of a text by name and labels; each line must match the format."""
    found: dict[str, int] = {}
    for line in text.split("\n")[:-1]:
        match = LINE.fullmatch(line)
        assert match is not None, line
        if match["name"]:
            found[line.rpartition(" ")[0]] = int(match["value"])
    return found


@pytest.fixture
def served(tmp_path: Path) -> AuditReport:
    """Two hits, a miss, an uncovered benchmark and calls outside under one table, a silent run."""
    return report_of(
        tmp_path / "a.log",
        {},
        {},
        {"event": "lookup.missed", "reason": "not_in_table"},
        {"event": "benchmark.uncovered", "site": "conv"},
        {"event": "call.outside", "reason": "beyond", "calls": 1},
        {"event": "call.outside", "reason": "beyond", "calls": 2},
        {"event": "graph.cached", "run": "s", "digest": "e", "decisions": 0},
        {"event": "graph.foreign", "run": "s", "digest": "e", "compiled_under": "d"},
    )


def test_every_count_is_a_sample(served: AuditReport) -> None:
    """Labels are the digest of the table, the reason of misses, the site of measurements."""
    found = samples(expose(served))
    assert {name: value for name, value in found.items() if value} == {
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


def test_each_metric_is_announced_before_its_samples(served: AuditReport) -> None:
    names = [
        line.split()[2] if line.startswith("#") else re.split(r"[{ ]", line)[0]
        for line in expose(served).splitlines()
    ]
    grouped = [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
    assert len(grouped) == len(set(grouped))


def test_unknown_unused_rows_are_no_sample(served: AuditReport) -> None:
    assert "warmup_unused_rows" not in samples(expose(served))


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
