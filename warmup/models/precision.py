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


# Inductor reads torch's one setting for all backends while it lowers (select_algorithm.py), which
# is an error of torch where a backend's own setting says otherwise. So both are set.
_OF_ALL_BACKENDS: Final = {"ieee": "highest", "tf32": "high", "bf16": "medium"}


@contextlib.contextmanager
def precision_of(problem: GemmProblem, device: torch.device) -> Iterator[None]:
    """Compute with the float32 precision and the reductions of *problem* while open.

    Torch's settings are those from before afterwards.

    Raises:
        ProblemError: this torch does not know the float32 precision.
    """
    with contextlib.ExitStack() as settings:
        if problem.fp32 is not None:
            settings.enter_context(_float32(problem.fp32, device))
        switch = _REDUCTION_SWITCHES.get(problem.dtype)
        if device.type != "cpu" and switch is not None:
            matmul: Any = torch.backends.cuda.matmul
            settings.callback(setattr, matmul, switch, getattr(matmul, switch))
            setattr(matmul, switch, not problem.full_reduction)
        yield


@contextlib.contextmanager
def _float32(precision: str, device: torch.device) -> Iterator[None]:
    backends: Any = torch.backends
    each = backends.mkldnn.matmul, backends.cuda.matmul
    matmul = each[device.type != "cpu"]
    if (precision, matmul.fp32_precision) == ("ieee", "none"):
        yield
        return
    unknown = ProblemError(f"this torch does not know fp32={precision}")
    if precision not in _OF_ALL_BACKENDS:
        raise unknown
    before = [backend.fp32_precision for backend in each]
    try:
        of_all = torch.get_float32_matmul_precision()
    except RuntimeError:  # the caller set one backend's alone
        of_all = "highest"
    torch.set_float32_matmul_precision(_OF_ALL_BACKENDS[precision])
    try:
        if matmul.fp32_precision != precision:
            raise unknown
        yield
    finally:
        torch.set_float32_matmul_precision(of_all)
        for backend, value in zip(each, before, strict=True):
            backend.fp32_precision = value
