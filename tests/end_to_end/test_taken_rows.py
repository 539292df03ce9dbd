"""`warmup build --rows-from`: rows that fit are taken, the rest is tuned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_processes import ROOT, warmup_in

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
