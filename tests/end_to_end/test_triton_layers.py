"""The Triton kernels of `bench layers`: interpreted on the CPU, and compiled for a Hopper GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked_python import run_forked

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]

INTERPRETED = """
import torch

from warmup.bench.layers import triton_kernels
from warmup.bench.layers.built_in import LAYERS
from warmup.bench.layers.layer import LayerShape, OpenLayer
from warmup.bench.layers.operands import LayerOperands

# More rows than programs of the weight's gradient, and sizes that fill no block.
triton_kernels._GRADIENT_PROGRAMS = 3
for name in ("rmsnorm", "softmax"):
    layer = OpenLayer.of(LAYERS[name](), name)
    for dtype, limit in ((torch.float32, 1e-5), (torch.float16, 5e-3)):
        for sizes in ((7, 33), (4, 64), (2, 3, 20)):
            cpu = torch.device("cpu")
            operands = LayerOperands(layer, LayerShape(sizes), dtype, cpu, warm=True)
            operands.check_forward(layer.backends["triton"], limit)
            operands.check_both(layer.backends["triton"], limit)
"""

COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from warmup.bench.layers import triton_kernels as kernels

CONSTANTS = {"EPSILON": 1e-6, "PER": 8}
for kernel in (
    kernels.rms_norm_rows,
    kernels.rms_norm_gradients,
    kernels.softmax_rows,
    kernels.softmax_gradients,
):
    for columns in (16384,):
        blocks = kernels._blocks(columns)
        given = {**CONSTANTS, "BLOCK": blocks["BLOCK"]}
        names = [parameter.name for parameter in kernel.params]
        types = {"columns": "i32", "rows": "i32", "scales": "*fp32", "parts": "*fp32"}
        signature = {
            name: "constexpr" if name.isupper() else types.get(name, "*bf16") for name in names
        }
        constants = {(names.index(name),): given[name] for name in names if name.isupper()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        made = compile(
            source,
            target=GPUTarget("cuda", 90, 32),
            options={"num_warps": blocks["num_warps"]},
        )
        assert made.metadata.shared <= 227 * 1024, (kernel, columns)
"""


def run(code: str, folder: Path, **variables: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        **variables,
    }
    done = run_forked("-c", code, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_kernels_agree_with_eager(tmp_path: Path) -> None:
    """Outputs and gradients, where rows fill no block and programs share no rows evenly."""
    pytest.importorskip("numpy")
    run(INTERPRETED, tmp_path, TRITON_INTERPRET="1")


def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """For a Hopper GPU each kernel fits into shared memory at the longest default rows."""
    run(COMPILED, tmp_path)
