"""`warmup build --shard` with real compiles on a CPU: shares of one document, joined by `merge`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_processes import warmup_in

from warmup.table.store import read

pytestmark = pytest.mark.nightly

KEYS = tuple(
    f"bmm batch=4 m=16 n={n} k=64 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
    for n in (32, 64, 96)
)


def test_the_union_of_the_shares_is_the_whole_build(tmp_path: Path) -> None:
    """Two shares have different rows, and joined exactly those of one build; a fourth is empty."""
    problems = [{"key": key, "kind": "gemm", "reason": "not_in_table", "count": 1} for key in KEYS]
    document = {"schema": 1, "digests": [], "problems": problems}
    (tmp_path / "misses.json").write_text(json.dumps(document))

    def build(out: str, *words: str) -> str:
        words = ("--problems", "misses.json", "--device", "cpu", "--out", out, *words)
        return warmup_in(tmp_path, "build", *words).stderr

    build("whole.json")
    shares = ("1.json", "2.json")
    for number, out in enumerate(shares, 1):
        build(out, "--shard", f"{number}/2")
    warmup_in(tmp_path, "merge", *shares, "--out", "union.json")
    tables = {name: read(tmp_path / name) for name in ("whole.json", *shares, "union.json")}
    assert sorted(len(tables[name].rows) for name in shares) == [1, 2]
    assert set(tables["union.json"].rows) == set(tables["whole.json"].rows) == set(KEYS)
    said = build("4.json", "--shard", "4/4")
    assert "share 4/4 is empty: the document has 3 problems" in said
    assert not (tmp_path / "4.json").exists()
