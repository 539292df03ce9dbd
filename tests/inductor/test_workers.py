"""Compile workers start first, and only for a GPU. No GPU is needed: its presence is stated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys, torch
torch.cuda.is_available = lambda: sys.argv[1] == "gpu"
from warmup.inductor import start_workers
start_workers(sys.argv[2])
result = {"graph_compiler": "torch._inductor.graph" in sys.modules, "answer": None}
if compiler := sys.modules.get("torch._inductor.async_compile"):
    if compiler._pool_set:
        ready = compiler.AsyncCompile._ready_future
        result["answer"] = ready.result(timeout=120)
print(json.dumps(result))
"""


def run(tmp_path: Path, machine: str, device: str) -> dict[str, object]:
    """Return what the program printed, with two compile threads and empty caches."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "t")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, machine, device],
        env={**os.environ, **caches, "TORCHINDUCTOR_COMPILE_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_workers_start_before_the_graph_compiler_is_imported(tmp_path: Path) -> None:
    """On a GPU machine a worker answers, while this process has not imported all of inductor."""
    assert run(tmp_path, "gpu", "auto") == {"graph_compiler": False, "answer": "ready"}


@pytest.mark.parametrize(("machine", "device"), [("gpu", "cpu"), ("none", "auto")])
def test_no_workers_for_a_cpu(tmp_path: Path, machine: str, device: str) -> None:
    """A table for a CPU, or a machine without a GPU, starts no process."""
    assert run(tmp_path, machine, device)["answer"] is None
