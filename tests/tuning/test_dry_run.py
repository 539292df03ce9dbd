"""The estimate of a dry run, and the plan of a build from misses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warmup.cli.plan_render import spell_graphs, spell_seconds
from warmup.tuning.dry_run import plan_keys
from warmup.tuning.earlier_builds import Pace
from warmup.tuning.from_misses import build_problems


def test_the_estimate_is_the_pace_of_the_last_build() -> None:
    """Seconds for each problem, and the basis in words."""
    plan = plan_keys(["k"], ["a", "b"], Pace(4, 30.0, "2026-01-02"))
    assert plan.estimate_s == pytest.approx(15.0)
    assert plan.basis == (
        "2 at 7.5 s each, compiling included: the pace of the last build on this device, 4 in "
        "30 s on 2026-01-02"
    )


def test_without_a_pace_there_is_no_estimate() -> None:
    """A number that nobody measured is not shown."""
    plan = plan_keys([], ["a"], None)
    assert (plan.estimate_s, plan.basis[:8]) == (None, "no build")


def test_nothing_to_tune_takes_no_time() -> None:
    """With a pace or without."""
    assert plan_keys(["k"], [], None).estimate_s == 0.0


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (99.4, "99 s"), (300, "5 min"), (9000, "2.5 h")]
)
def test_durations_have_units(seconds: float, said: str) -> None:
    """Never a bare clock time, which reads as a time left."""
    assert spell_seconds(seconds) == said


def test_one_graph_needs_no_words() -> None:
    """Several do: what their branches leave out."""
    assert list(spell_graphs("seqlen=8", 1)) == []
    (line,) = spell_graphs("seqlen=8", 3)
    assert line.startswith("seqlen=8: the model breaks into 3 graphs; branches that these inputs")


def test_a_dry_run_of_misses_compiles_and_writes_nothing(tmp_path: Path) -> None:
    """Each missed key once; the table is not made."""
    key = "mm m=16 n=96 k=64 f32 a=row b=row out=f32 | epilogue=none"
    problem = {"key": key, "kind": "gemm", "reason": "not_in_table", "count": 3}
    document = {"schema": 1, "digests": [], "problems": [problem]}
    (tmp_path / "misses.json").write_text(json.dumps(document))
    out = tmp_path / "new" / "t.json"
    report = build_problems(tmp_path / "misses.json", out=out, device="cpu", dry_run=True)
    assert report.plan is not None
    assert (report.plan.known, report.plan.missing, report.buckets) == ((), (key,), ())
    assert [path.name for path in tmp_path.iterdir()] == ["misses.json"]
