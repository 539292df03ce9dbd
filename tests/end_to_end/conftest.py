"""The table that several files here serve from, built once for all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> tuple[Path, dict[str, Any]]:
    """A table of the example MLP for the buckets 16 and 64, and what `warmup build` printed.

    The first worker that wants it builds it, from empty caches; the others wait.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "built-mlp"
    folder.mkdir(exist_ok=True)
    table, said = folder / "mlp.json", folder / "said.json"
    with FileLock(folder / "lock"):
        if not said.exists():
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "warmup", "build", "--json", "--device", "cpu"),
                    *("--model", f"{ROOT / 'examples' / 'mlp.py'}:MLP", "--seqlens", "16,64"),
                    *("--out", str(table), "--timings", str(folder / "t.jsonl")),
                ],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
                },
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            said.write_text(done.stdout)
    return table, json.loads(said.read_text())
