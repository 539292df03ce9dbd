"""`warmup build -- COMMAND` on a GPU: every kind of question, of a script that names no table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.keys.registry import kind_of
from warmup.serving.audit import AuditReport, audit
from warmup.table.store import read

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SCRIPT = str(Path(__file__).resolve().parents[1] / "programs" / "scripts" / "gpu_script.py")

Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def built(start: Start, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The table of the script, and what the build printed as JSON."""
    table = tmp_path_factory.mktemp("program") / "script.json"
    words = ("build", "--json", "--out", str(table), "--", sys.executable, SCRIPT)
    done = start(table.parent, "-m", "warmup", *words)
    assert done.returncode in {0, 4}, done.stderr[-4000:]  # 4: a noisy machine
    first: dict[str, Any] = json.loads(done.stdout)
    if first["changed_afterwards"]:  # other kernels follow, which the same command tunes
        done = start(table.parent, "-m", "warmup", *words)
        assert done.returncode in {0, 4}, done.stderr[-4000:]
    return table, first


@pytest.fixture(scope="module")
def served(built: tuple[Path, dict[str, Any]], start: Start) -> AuditReport:
    """The audit of the script, served from its table with empty caches."""
    folder = built[0].parent / "served"
    folder.mkdir()
    log = folder / "audit.jsonl"
    words = ("run", "--table", str(built[0]), "--audit-log", str(log), "--", sys.executable, SCRIPT)
    done = start(folder, "-m", "warmup", *words)
    assert done.returncode == 0, done.stderr[-4000:]
    return audit([log])


def test_launch_configs_are_tuned_in_the_program(built: tuple[Path, dict[str, Any]]) -> None:
    """They exist only there: no key of them can be rebuilt."""
    kinds = Counter(one["kind"] for one in built[1]["tuned_in_program"])
    assert kinds["gemm"] > 0
    assert kinds["launch"] > 0


def test_pad_decisions_and_splits_are_made_in_their_regions(
    built: tuple[Path, dict[str, Any]],
) -> None:
    """They are measured when the program has ended, as in a build of a model."""
    rows = read(built[0]).rows
    pads = [row for key, row in rows.items() if kind_of(key).name == "pad"]
    assert pads
    assert {row.evidence.scope for row in pads} == {"fused"}
    assert any(kind_of(key).name == "split" for key in rows)


def test_the_script_misses_nothing_afterwards(served: AuditReport) -> None:
    """Static sizes, the range, launch configs, padding and the split reduction are hits."""
    assert [miss.key for miss in served.misses] == []
    assert served.uncovered == {}
    assert sum(served.hits.values()) > 0
