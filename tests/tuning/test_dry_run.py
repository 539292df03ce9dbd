"""The plan of a dry run: its words, and the plan of a build from misses."""

from __future__ import annotations

import json
from pathlib import Path

from warmup.cli.build_render import spell_graphs
from warmup.core.uncompiled import Uncompiled
from warmup.tuning.from_misses import build_problems


def test_one_graph_needs_no_words() -> None:
    """Several do: what their branches leave out."""
    assert list(spell_graphs("seqlen=8", 1, Uncompiled())) == []
    left = Uncompiled(("f (m.py:3): no",), 2)
    line, *rest = spell_graphs("seqlen=8", 3, left)
    assert line.startswith("seqlen=8: the model breaks into 3 graphs; branches that these inputs")
    assert rest[0] == "seqlen=8: uncompiled: f (m.py:3): no"
    assert rest[1].startswith("seqlen=8: matmuls that a call runs outside any graph")


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
