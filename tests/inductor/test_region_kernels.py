"""`KernelWatch`: what is read of a region's code and kernels once they were loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from warmup.inductor.gemm.hooks import KernelWatch

CODE = """
from torch._inductor.select_algorithm import extern_kernels

def call(args):
    buf0 = extern_kernels.bias_addmm(b_1, x_1, w_1)
    triton_poi_fused_0.run(buf0, 4096, stream=raw_stream0)
    extern_kernels.mm(buf0, v_1, out=buf1)
"""


def loaded(folder: Path, **kernels: Any) -> KernelWatch:
    """Return a watch that has seen a module with *CODE* and *kernels* being loaded."""
    path = folder / "code.py"
    path.write_text(CODE, encoding="utf-8")
    watch = KernelWatch()
    watch.wrap_load(lambda _graph: SimpleNamespace(__file__=str(path), **kernels))(None)
    return watch


def test_launches_and_library_calls_are_counted(tmp_path: Path) -> None:
    """Library calls count as one kernel each, with a result of their own or written in place."""
    assert loaded(tmp_path).count_launches() == 3


def test_no_registers_are_known_without_a_template(tmp_path: Path) -> None:
    """A region whose GEMM is a library call has no spills to report."""
    assert loaded(tmp_path).spills_and_registers("mm 1") == (None, None)
