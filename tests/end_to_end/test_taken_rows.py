"""`warmup build --rows-from`: rows that fit are taken, the rest is tuned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_processes import ROOT, warmup_in

from warmup.keys.registry import kind_of
from warmup.table.store import read, write

pytestmark = pytest.mark.long

MLP = ROOT / "examples" / "mlp.py"
BUILD = ("build", "--json", "--device", "cpu")


def test_a_build_tunes_what_earlier_tables_lack(
    built: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Half of the rows are taken, evidence included; another device's table is refused whole."""
    source, folder = read(built[0]), tmp_path
    half = dict(list(source.rows.items())[::2])
    write(folder / "half.json", replace(source, rows=half))
    device = replace(source.provenance.runtime.device, threads=99)
    runtime = replace(source.provenance.runtime, device=device)
    other = replace(source, provenance=replace(source.provenance, runtime=runtime))
    write(folder / "other.json", other)
    words = [f"--rows-from={folder / name}.json" for name in ("half", "other")]
    model = ("--model", str(MLP), "--seqlens", "16,64", "--out", "again.json")
    report = json.loads(warmup_in(folder, *BUILD, *model, *words).stdout)
    tuned = {one["key"] for one in report["problems"]}
    assert tuned == source.rows.keys() - half.keys()
    assert len(tuned) > 0
    taken, refused = report["rows_from"]
    assert ({*taken["taken"]}, taken["refused"]) == ({*half}, {})
    assert refused["refused"].keys() == source.rows.keys()
    assert all("threads" in reason for reason in refused["refused"].values())
    rows = read(folder / "again.json").rows
    assert {key: rows[key] for key in half} == half


def test_a_dry_run_for_misses_counts_what_would_be_taken(
    built: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """With `--problems` too; nothing is written."""
    key = next(key for key in read(built[0]).rows if kind_of(key).name == "gemm")
    problem = {"key": key, "kind": "gemm", "reason": "not_in_table", "count": 3}
    document = {"schema": 1, "digests": [], "problems": [problem]}
    misses = tmp_path / "misses.json"
    misses.write_text(json.dumps(document))
    words = ("--problems", str(misses), "--out", str(tmp_path / "t.json"), "--dry-run")
    plan = json.loads(warmup_in(tmp_path, *BUILD, *words, "--rows-from", str(built[0])).stdout)
    assert (plan["missing"], plan["known"]) == ([], [key])
    assert plan["rows_from"] == [{"path": str(built[0]), "taken": [key], "refused": {}}]
    assert not (tmp_path / "t.json").exists()
