"""`warmup build --rows-from`: rows that fit are taken, the rest is tuned."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_processes import run_python

from warmup.keys.registry import kind_of
from warmup.table.codec import encode
from warmup.table.store import read, write

pytestmark = pytest.mark.long

MLP = Path(__file__).resolve().parents[2] / "examples" / "mlp.py"
BUILD = ("-m", "warmup", "build", "--json", "--device", "cpu")
Build = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture
def build(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> Build:
    """Build the example's MLP again; return the table's path and what was printed."""

    def run(name: str, *words: str) -> tuple[Path, dict[str, Any]]:
        model = ("--model", str(MLP), "--seqlens", "16,64", "--out", "again.json")
        folder, said = run_once(name, *BUILD, *model, *words, **variables)
        return folder / "again.json", json.loads(said)

    return run


def test_a_build_takes_every_row_of_an_earlier_table(
    built: tuple[Path, dict[str, Any]], build: Build
) -> None:
    """Nothing is measured, and the rows are the source's own, evidence included."""
    path, report = build("takes-all", "--rows-from", str(built[0]))
    source = read(built[0])
    assert report["problems"] == []
    (used,) = report["rows_from"]
    assert (used["path"], {*used["taken"]}, used["refused"]) == (str(built[0]), {*source.rows}, {})
    assert encode(replace(source, rows=read(path).rows)) == encode(source)


def test_a_build_tunes_what_earlier_tables_lack(
    built: tuple[Path, dict[str, Any]], build: Build, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Half of the rows are taken, the others measured; another device's table is refused whole."""
    source, folder = read(built[0]), tmp_path_factory.getbasetemp()
    half = dict(list(source.rows.items())[::2])
    write(folder / "half.json", replace(source, rows=half))
    device = replace(source.provenance.runtime.device, threads=99)
    runtime = replace(source.provenance.runtime, device=device)
    other = replace(source, provenance=replace(source.provenance, runtime=runtime))
    write(folder / "other.json", other)
    words = [f"--rows-from={folder / name}.json" for name in ("half", "other")]
    path, report = build("takes-half", *words)
    tuned = {one["key"] for one in report["problems"]}
    assert tuned == source.rows.keys() - half.keys()
    assert len(tuned) > 0
    taken, refused = report["rows_from"]
    assert ({*taken["taken"]}, taken["refused"]) == ({*half}, {})
    assert refused["refused"].keys() == source.rows.keys()
    assert all("threads" in reason for reason in refused["refused"].values())
    rows = read(path).rows
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
    done = run_python(*BUILD, *words, "--rows-from", str(built[0]))
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["missing"], plan["known"]) == ([], [key])
    assert plan["rows_from"] == [{"path": str(built[0]), "taken": [key], "refused": {}}]
    assert [path.name for path in tmp_path.iterdir()] == ["misses.json"]
