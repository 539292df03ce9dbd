"""Profiles one made-up trace by `warmup profile` and torch's analysis: beside_torch.py FOLDER [nk].

The trace has known kernels, in the form in which the profiler of torch writes them on an H100: four
equal launches of a library's addmm, two of a template's, a pointwise kernel, and a convolution.
With ``nk`` the template's weight has the sizes N K, as that of a linear has, else K N.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from gpu_events import GpuTrace  # noqa: E402  beside this folder

M, N, K = 4096, 2304, 1024
PRODUCT = [[N], [M, K], [K, N], [], [], [M, N]]


def shapes(sizes: list[list[int]], concrete: list[str] | None = None, **more: Any) -> Any:
    """Return the arguments that ``record_shapes`` records of bf16 tensors and scalars."""
    return {
        "Input Dims": sizes,
        "Input type": ["c10::BFloat16" if each else "Scalar" for each in sizes],
        "Input Strides": [[*each[1:], 1] if each else [] for each in sizes],
        "Concrete Inputs": concrete or ["" if each else "1" for each in sizes],
        **more,
    }


TEMPLATE = "triton_tem_fused_addmm_0"
SILU = "triton_poi_fused_mul_silu_1"
CONVOLUTION = [[8, 64, 56, 56], [64, 64, 3, 3], [], [], [], []]


def kernels(weight: list[int]) -> list[tuple[str, str, float, Any]]:
    """Return operator, kernel, microseconds and arguments of each launch."""
    template = shapes([[N], [M, K], weight, [M, N]])
    window = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
    return [
        *[("aten::addmm", "nvjet_tst", 40.0, shapes(PRODUCT))] * 4,
        *[(TEMPLATE, TEMPLATE, us, template) for us in (30.0, 31.0)],
        (SILU, SILU, 20.0, shapes([[M, N]] * 3)),
        ("aten::cudnn_convolution", "sm90_xmma_fprop", 50.0, shapes(CONVOLUTION, window)),
    ]


def write(folder: Path, weight: list[int]) -> Path:
    """Write the trace into *folder*."""
    trace = GpuTrace()
    for number, (operator, kernel, us, arguments) in enumerate(kernels(weight)):
        begin = 60.0 * number
        external = trace.operator(operator, begin, 9, **arguments)
        trace.kernel(kernel, begin + 10, us, launched=begin + 1, external=external)
    for event in trace.events:  # torch's analysis leaves out kernels without it
        if event["cat"] == "kernel":
            event["args"]["name"] = event["name"]
    return trace.write(folder / "trace.json")


def main(folder: str, *form: str) -> None:
    """Print what both say of the trace."""
    path = str(write(Path(folder), [N, K] if form else [K, N]))
    analysis = ("torch._inductor.analysis.profile_analysis", "--analysis", path, "bfloat16")
    for words in (("warmup", "profile", path), analysis):
        subprocess.run([sys.executable, "-m", *words], check=True, cwd=folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
