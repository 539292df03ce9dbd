"""Compile workers: started early, and only for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_processes import PROGRAMS

pytestmark = pytest.mark.long

Run = Callable[..., Any]
TWO_THREADS = {"TORCHINDUCTOR_COMPILE_THREADS": "2"}
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


def test_workers_start_on_a_gpu_before_the_graph_compiler_is_imported(
    run_program: Run, tmp_path: Path
) -> None:
    found = run_program(tmp_path, "-c", PROGRAM, "gpu", "auto", **TWO_THREADS)
    assert found == {"graph_compiler": False, "answer": "ready"}
    for machine, device in (("gpu", "cpu"), ("none", "auto")):  # no process starts for a CPU
        found = run_program(tmp_path, "-c", PROGRAM, machine, device, **TWO_THREADS)
        assert found["answer"] is None, (machine, device)


WARMING = """
import json, sys, time, os
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import fake_gpu, h100, warmup
table = Path(sys.argv[1]).parents[1] / "tables/nvidia-h100-80gb-hbm3/zoo.t5.bf16.json"
warmup.install(table, bundle=False)
kernels, until = set(), time.monotonic() + 120
while len(kernels) < 1 and time.monotonic() < until:
    kernels = set(Path(os.environ["TRITON_CACHE_DIR"]).glob("*/copy.cubin"))
    time.sleep(0.1)
print(json.dumps(len(kernels)))
"""


def test_an_install_lets_workers_load_their_compilers(run_program: Run, tmp_path: Path) -> None:
    """Before the first call, and for the GPU that is served: here one that is stated."""
    pytest.importorskip("triton")
    words = {**TWO_THREADS, "TRITON_CACHE_DIR": str(tmp_path), "WARMUP_ALLOW_MISMATCH": "1"}
    assert run_program(tmp_path, "-c", WARMING, str(PROGRAMS), **words) == 1


RANKING = """
import json, os, sys, torch
torch.cuda.is_available = lambda: True
from warmup.inductor import start_workers
start_workers("auto", for_build=True)
from torch._inductor.async_compile import AsyncCompile
task = AsyncCompile.process_pool().submit(os.nice, 0)
print(json.dumps(task.result(timeout=120) - os.nice(0)))
"""


def test_workers_of_a_build_yield_to_what_measures(run_program: Run, tmp_path: Path) -> None:
    assert run_program(tmp_path, "-c", RANKING, **TWO_THREADS) > 0


ASSEMBLING = """
import json, os, sys
from torch._inductor.runtime import compile_tasks
compile_tasks.__file__ = sys.argv[1] + "/torch/_inductor/runtime/compile_tasks.py"
from warmup.inductor.machine import assemble_as_workers_do
assemble_as_workers_do()
print(json.dumps({"ptxas": os.environ.get("TRITON_PTXAS_PATH")}))
"""


def test_the_ptxas_that_torch_brings_is_used_unless_the_user_names_one(
    run_program: Run, tmp_path: Path
) -> None:
    brought = [tmp_path / "torch/bin/ptxas", tmp_path / "torch/_inductor/bin/ptxas"]  # torch 2.13
    for path in brought:
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    words = ("-c", ASSEMBLING, str(tmp_path))
    assert run_program(tmp_path, *words)["ptxas"] in map(str, brought)
    assert run_program(tmp_path, *words, TRITON_PTXAS_PATH="/own") == {"ptxas": "/own"}


FORGETTING = """
import json, os, sys, torch
torch.version.cuda = "13.0"
from triton.backends.nvidia.compiler import get_ptxas_version
from warmup.inductor.machine import assemble_as_workers_do
def version(path):
    os.environ["TRITON_PTXAS_PATH"] = path
    return get_ptxas_version(80).split()[-1]
first, other = sys.argv[1:]
found = [version(first), version(other)]
assemble_as_workers_do()
print(json.dumps([*found, version(other)]))
"""


def test_the_cached_version_of_another_assembler_is_cleared(
    run_program: Run, tmp_path: Path
) -> None:
    """The version of ptxas, which is part of kernel names, is read again."""
    pytest.importorskip("triton")
    paths = []
    for version in ("V12.8.1", "V13.0.2"):
        path = tmp_path / version
        path.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release 13.0, {version}"\n')
        path.chmod(0o755)
        paths.append(str(path))
    assert run_program(tmp_path, "-c", FORGETTING, *paths) == ["V12.8.1", "V12.8.1", "V13.0.2"]
