"""`warmup.metrics` and TORCH_LOGS in a process that serves from a table, on CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from warmup.serving.audit import AuditReport, report_of
from warmup.serving.counters import expose
from warmup.serving.logs import Ledger
from warmup.table.store import read

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "programs" / "serve_counted.py"

Samples = dict[str, float]


def samples(text: str) -> Samples:
    """Return the samples of *text* by name and labels without the digest, the units in the name."""
    return {
        ",".join(
            [sample.name, *(v for k, v in sample.labels.items() if k != "digest")]
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def served(
    net: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[str], str]:
    """The scrapes of the program, and its stderr under TORCH_LOGS=+warmup."""
    folder = tmp_path_factory.mktemp("counted")
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(net[0])],
        env={**os.environ, **caches, "TORCH_LOGS": "+warmup"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), done.stderr


def test_without_a_table_there_are_names_and_no_samples(served: tuple[list[str], str]) -> None:
    """A collector that is registered before the install names its metrics."""
    before = served[0][0]
    assert samples(before) == {}
    assert "# TYPE warmup_hits_total counter" in before


def test_a_hit_shows_at_the_next_scrape(
    served: tuple[list[str], str], net: tuple[Path, dict[str, Any]]
) -> None:
    """The bucket's decisions are hits, one compile is counted, and its seconds."""
    found = samples(served[0][1])
    assert found["warmup_hits_total"] == len(read(net[0]).rows)
    assert (found["warmup_installed"], found["warmup_compiles_total"]) == (1, 1)
    assert found["warmup_compile_seconds_total"] > 0
    assert not any(name.startswith("warmup_misses_total,") for name in found)


def test_misses_are_counted_by_reason(served: tuple[list[str], str]) -> None:
    """Sizes without a row: the reason is a label, and the hits stay as they were."""
    before, after = map(samples, served[0][1:])
    missed = {name: value for name, value in after.items() if "misses_total," in name}
    assert missed == {"warmup_misses_total,not_in_table": before["warmup_hits_total"]}
    assert after["warmup_hits_total"] == before["warmup_hits_total"]
    assert after["warmup_compiles_total"] == 2


def test_torch_logs_takes_the_name_of_the_package(served: tuple[list[str], str]) -> None:
    """TORCH_LOGS=+warmup writes the package's sentences in the form of torch's own log."""
    lines = [
        line
        for line in served[1].splitlines()
        if "installed the table" in line or "] installed " in line
    ]
    assert [line[0] for line in lines] == ["I"]


def test_live_names_mean_what_the_audit_writes(served: tuple[list[str], str]) -> None:
    """A metric that the audit has too has the same type and help text."""
    report: AuditReport = report_of(Ledger())
    audited = {line for line in expose(report).splitlines() if line.startswith("#")}
    live = {line for line in served[0][2].splitlines() if line.startswith("#")}
    shared = {line.split()[2] for line in audited} & {line.split()[2] for line in live}
    assert len(shared) == 9
    assert {line for line in live if line.split()[2] in shared} <= audited
