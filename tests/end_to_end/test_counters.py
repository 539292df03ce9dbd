"""`warmup.metrics` and TORCH_LOGS in a process that serves from a table, on CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from own_processes import PROGRAMS, python_in
from prometheus_client.parser import text_string_to_metric_families

from warmup.serving.audit import Ledger, expose, report_of
from warmup.table.store import read

pytestmark = pytest.mark.long


def samples(text: str) -> dict[str, float]:
    """Return the samples of *text* by name and labels without the digest, the units in the name."""
    return {
        ",".join(
            [sample.name, *(v for k, v in sample.labels.items() if k != "digest")]
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_has_the_counts_of_the_handle(
    net: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Names before the install, then a hit, then a miss by its reason; TORCH_LOGS has sentences.

    A metric that the audit has too has the same type and help text.
    """
    words = (str(PROGRAMS / "serve_counted.py"), str(net[0]))
    done = python_in(tmp_path, *words, TORCH_LOGS="+warmup")
    before, hit, missed = json.loads(done.stdout)
    assert samples(before) == {}
    assert "# TYPE warmup_hits_total counter" in before
    rows, found, after = len(read(net[0]).rows), samples(hit), samples(missed)
    assert (found["warmup_hits_total"], found["warmup_installed"]) == (rows, 1)
    assert (found["warmup_compiles_total"], after["warmup_compiles_total"]) == (1, 2)
    assert found["warmup_compile_seconds_total"] > 0
    assert not any(name.startswith("warmup_misses_total,") for name in found)
    misses = {name: value for name, value in after.items() if "misses_total," in name}
    assert misses == {"warmup_misses_total,not_in_table": rows}
    assert after["warmup_hits_total"] == rows
    installed = [line for line in done.stderr.splitlines() if "] installed " in line]
    assert [line[0] for line in installed] == ["I"]
    audited, live = (
        {line for line in text.splitlines() if line.startswith("#")}
        for text in (expose(report_of(Ledger())), missed)
    )
    shared = {line.split()[2] for line in audited} & {line.split()[2] for line in live}
    assert len(shared) == 9
    assert {line for line in live if line.split()[2] in shared} <= audited
