"""What a real build on a CPU measures: evidence, its method, and the same keys again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

from warmup.cli import main
from warmup.core.method import L2, Launch
from warmup.core.rows import Family
from warmup.table.schema import Table
from warmup.table.store import read

ROOT = Path(__file__).resolve().parents[2]
NET = (
    *("--model", f"{ROOT / 'tests' / 'programs' / 'models' / 'plain_script.py'}:Net"),
    *("--input", "x=[seqlen,32]:f32", "--seqlens", "8"),
)
Built = tuple[Path, dict[str, Any]]


@pytest.fixture
def table(built: Built) -> Table:
    """The table that a real build has written, from empty caches."""
    return read(built[0])


def test_a_row_says_how_it_was_measured(table: Table) -> None:
    """Spread, band of near ties, error against the reference, and the time of the library's kernel.

    The winner is no slower than the library's kernel. A CPU claims no share of a peak.
    """
    assert (table.policy.timing.launch, table.policy.timing.l2) == (Launch.EAGER, L2.WARM)
    assert table.rows
    for key, row in table.rows.items():
        evidence = row.evidence
        assert None not in (evidence.spread, evidence.band, evidence.error, evidence.library_us), (
            key
        )
        assert (evidence.spread or 0) >= 0, key
        assert (evidence.band or 0) >= table.policy.timing.near_tie, key
        assert 0 <= (evidence.error or 0) <= 10 * max(table.policy.tolerance.values()), key
        assert evidence.tried > 1, key
        assert evidence.time_us <= (evidence.library_us or 0), key
        assert row.winner.family in {Family.EXTERN, Family.CPP}, key
        assert (evidence.peak_share, evidence.clock_mhz) == (None, None), key


@pytest.mark.long
def test_a_forced_build_measures_the_same_keys(net: Built, tmp_path: Path) -> None:
    """--retry all tunes what is there again: the same questions, by the same method."""
    again = Path(shutil.copy(net[0], tmp_path / "again.json"))
    words = (*NET, "--device", "cpu", "--out", again.name, "--retry", "all", "--json")
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    done = run_forked(
        *("-m", "warmup", "build", *words),
        env={**os.environ, "PYTHONPATH": str(ROOT), **caches},
        cwd=tmp_path,
    )
    assert done.returncode in {0, 4}, done.stderr[-3000:]
    first, second, report = read(net[0]), read(again), json.loads(done.stdout)
    assert set(second.rows) == set(first.rows)
    assert second.policy == first.policy
    tuned = [sum(bucket["tuned"] for bucket in one["buckets"]) for one in (net[1], report)]
    assert tuned == [len(first.rows)] * 2


def test_the_document_says_what_each_search_came_to(built: Built) -> None:
    """On a CPU nothing is added or left out: every candidate is one that inductor listed."""
    assert built[1]["problems"]
    for problem in built[1]["problems"]:
        listed = len(problem["candidates"])
        none = {"added": {}, "pruned": {}, "spilling": 0, "left_out": 0}
        assert problem["searched"] == {"search": "default", "listed": listed, **none}


def test_what_a_cpu_cannot_be_timed_with_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 3 and one line, before anything is written."""
    out = tmp_path / "mlp.json"
    for option, word in (("--launch", "cudagraph"), ("--set", "l2=cold")):
        with pytest.raises(SystemExit) as stopped:
            main(["build", *NET, "--device", "cpu", "--out", str(out), option, word])
        said = capsys.readouterr().err
        assert (stopped.value.code, said.count("\n")) == (3, 1), option
        assert said.startswith("error: a CPU has no CUDA graphs and is timed warm"), option
        assert not out.exists(), option
