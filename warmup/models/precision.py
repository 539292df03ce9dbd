"""`precision_of`: torch set to the float32 precision and the reductions that a GEMM key names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch

from warmup.core.errors import ProblemError
from warmup.keys.gemm import GemmProblem

_REDUCTION_SWITCHES: Final = {
    "bf16": "allow_bf16_reduced_precision_reduction",
    "f16": "allow_fp16_reduced_precision_reduction",
}


@contextlib.contextmanager
def precision_of(problem: GemmProblem, device: torch.device) -> Iterator[None]:
    """Compute with the float32 precision and the reductions of *problem* while open.

    Torch's settings are those from before afterwards.

    Raises:
        ProblemError: this torch does not know the float32 precision.
    """
    fp32, reduction = problem.fp32, _REDUCTION_SWITCHES.get(problem.dtype)
    backend: Any = torch.backends.mkldnn if device.type == "cpu" else torch.backends.cuda
    matmul = backend.matmul
    wanted: dict[str, Any] = {}
    if fp32 is not None and (fp32, matmul.fp32_precision) != ("ieee", "none"):
        wanted["fp32_precision"] = fp32
    if device.type != "cpu" and reduction is not None:
        wanted[reduction] = not problem.full_reduction
    before = {name: getattr(matmul, name) for name in wanted}
    try:
        for name, value in wanted.items():
            setattr(matmul, name, value)
    except RuntimeError as error:
        raise ProblemError(f"this torch does not know fp32={fp32}") from error
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(matmul, name, value)
