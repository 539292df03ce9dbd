"""What a real build on a CPU measures: evidence, its method, and the same keys again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warmup.choice import Family, Rejection
from warmup.method import L2, Launch
from warmup.table import Table
from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[2]
Built = tuple[Path, dict[str, Any]]


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Build the example MLP into *folder* in a fresh process with empty caches."""
    model = ("--model", f"{ROOT / 'examples' / 'mlp.py'}:MLP", "--seqlens", "16,64")
    return subprocess.run(
        [sys.executable, "-m", "warmup", "build", "--device", "cpu", *model, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def table(built: Built) -> Table:
    """The table that a real build has written, from empty caches."""
    return read(built[0])


def test_a_row_says_how_it_was_measured(table: Table) -> None:
    """Every row has its spread, the band of near ties and the error against the reference."""
    assert table.rows
    for row in table.rows.values():
        evidence = row.evidence
        assert evidence.spread is not None
        assert evidence.spread >= 0
        assert evidence.band is not None
        assert evidence.band >= table.policy.timing.near_tie
        assert evidence.error is not None
        assert 0 <= evidence.error <= 10 * max(table.policy.tolerance.values())


def test_the_library_default_was_measured_too(table: Table) -> None:
    """A row was chosen among several: the control has a time, unless the clock was not believed."""
    for row in table.rows.values():
        evidence, reasons = row.evidence, dict(row.evidence.rejected)
        assert evidence.tried > 1
        assert evidence.library_us is not None or Rejection.IMPLAUSIBLE in reasons
        assert row.winner.family in {Family.EXTERN, Family.CPP}


def test_a_cpu_has_no_share_of_a_peak(table: Table) -> None:
    """What was not measured is not claimed."""
    found = [(row.evidence.peak_share, row.evidence.clock_mhz) for row in table.rows.values()]
    assert set(found) == {(None, None)}


def test_the_policy_says_how_it_was_timed(table: Table) -> None:
    """On a CPU call after call, with what the caches hold."""
    assert (table.policy.timing.launch, table.policy.timing.l2) == (Launch.EAGER, L2.WARM)


def test_a_forced_build_measures_the_same_keys(built: Built, table: Table, tmp_path: Path) -> None:
    """--force tunes what is there again: the same questions, by the same method."""
    again = Path(shutil.copy(built[0], tmp_path / "again.json"))
    done = build(tmp_path, "--out", again.name, "--force", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    second, report = read(again), json.loads(done.stdout)
    assert set(second.rows) == set(table.rows)
    assert second.policy == table.policy
    tuned = [sum(bucket["tuned"] for bucket in one["buckets"]) for one in (built[1], report)]
    assert tuned == [len(table.rows)] * 2


@pytest.mark.parametrize(("option", "word"), [("--launch", "cudagraph"), ("--l2", "cold")])
def test_what_a_cpu_cannot_be_timed_with_is_refused(tmp_path: Path, option: str, word: str) -> None:
    """Exit 3 and one line, before anything is written."""
    done = build(tmp_path, "--out", "mlp.json", option, word)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert done.stderr.startswith("error: a CPU has no CUDA graphs and is timed warm")
    assert not (tmp_path / "mlp.json").exists()
