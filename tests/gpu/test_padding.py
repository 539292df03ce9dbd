"""Pad decisions of a build on a GPU: by compiled regions, and served as decided."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.core.rows import Row, Scope, bare_ranked, ranked
from warmup.serving.audit import audit
from warmup.table.store import read

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Run = Callable[..., str]
Built = tuple[Path, dict[str, Any]]
MODEL = ("--model", "examples/mlp.py:VisionLinear", "--seqlens", "560,2048")


@pytest.fixture(scope="module")
def built(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A table of Linear(3420 -> 1280) without padded weights, and what the build said."""
    folder = tmp_path_factory.mktemp("padding")
    path = folder / "vision.json"
    words = ("build", *MODEL, "--out", str(path), "--no-pad-weights", "--json")
    return path, json.loads(run(folder, "-m", "warmup", *words))


@pytest.fixture(scope="module")
def pad_rows(built: Built) -> dict[str, Row]:
    return {key: row for key, row in read(built[0]).rows.items() if key.startswith("pad ")}


def test_each_decision_is_that_of_its_region(built: Built, pad_rows: dict[str, Row]) -> None:
    """Both ways were compiled and timed; the winner's result was compared with a reference."""
    assert sorted(key.split()[2] for key in pad_rows) == ["m=2048", "m=560"]
    for row in pad_rows.values():
        assert row.evidence.scope is Scope.FUSED
        assert sorted(name for _, name in ranked(row.evidence)) == ["as_is", "padded"]
        assert row.evidence.error is not None
    assert [key for key in built[1]["not_fused"] if key.startswith("pad ")] == []


def test_the_times_of_inductors_own_calls_are_kept(pad_rows: dict[str, Row]) -> None:
    for row in pad_rows.values():
        assert sorted(name for _, name in bare_ranked(row.evidence)) == ["as_is", "padded"]


def test_a_server_asks_for_the_rows_of_the_way_that_won(
    start: Callable[..., Any], built: Built, tmp_path: Path
) -> None:
    """Strictly and without a benchmark; no row of the other way is left in the table."""
    log = tmp_path / "audit.jsonl"
    words = ("check", str(built[0]), "--prime", *MODEL, "--no-pad-weights")
    done = start(tmp_path, "-m", "warmup", *words, WARMUP_AUDIT_LOG=str(log))
    assert done.returncode == 0, done.stderr
    found = audit([log])
    assert set(found.hits) == set(read(built[0]).rows)
    assert (found.misses, dict(found.uncovered)) == ((), {})
