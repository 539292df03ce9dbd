"""`reference_of`: the expected result of a GEMM; `judge_output`: whether an output is near it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from warmup.core.rows import Rejection
from warmup.core.trial import Trial
from warmup.measuring.operands import poison_of

_ELEMENT_FACTOR: Final = 10  # an element may deviate by this many tolerances times the RMS


def reference_of(trial: Trial, operands: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the expected result of *trial* for *operands*, in `wide_dtype`.

    None when there is no reference for the trial's op or for the layout of its operands.
    """
    if any(operand.layout is not torch.strided for operand in operands):
        return None  # packed for mkldnn
    wide = wide_dtype(operands[-1].dtype)
    with full_precision():
        return _widened_gemm(trial, [operand.to(wide) for operand in operands])


def widened(out: torch.Tensor) -> torch.Tensor:
    """Return *out* in the precision of the reference."""
    return out.to(wide_dtype(out.dtype))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the reference precision: float32 for narrower floats, float64 for float32 and ints."""
    # float64 holds the products of integers exactly.
    is_narrow = dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize
    return torch.float32 if is_narrow else torch.float64


def _widened_gemm(trial: Trial, wide: list[torch.Tensor]) -> torch.Tensor | None:
    match trial.op, wide:
        case (("mm" | "bmm" | "int_mm"), [a, b]):
            return torch.matmul(a, b)
        case (("addmm" | "baddbmm"), [bias, a, b]):
            return trial.beta * bias + trial.alpha * torch.matmul(a, b)
        case "mm_plus_mm", [a, b, c, d]:
            return torch.matmul(a, b) + torch.matmul(c, d)
        case "scaled_mm", [a, b, scale_a, scale_b, *bias]:
            if not _spans(scale_a, a.shape[0], 1) or not _spans(scale_b, 1, b.shape[1]):
                return None  # there is no reference for block scales
            product = torch.matmul(a * scale_a, b * scale_b)
            return product + bias[0] if bias else product
    return None


def _spans(scale: torch.Tensor, rows: int, cols: int) -> bool:
    """Whether *scale* is a single value, or has one value per row or column."""
    return scale.numel() == 1 or tuple(scale.shape) == (rows, cols)


def judge_output(
    out: torch.Tensor, reference: torch.Tensor, tolerance: float
) -> tuple[float, Rejection | None, str]:
    """Return the largest element error of *out*, and the reason and message of a rejection if any.

    The error is in units of the reference's root mean square (RMS). *out* is wrong when its
    relative L2 distance is above *tolerance*, or when one element deviates by more than ten times
    *tolerance* times the RMS: a small wrong part hardly shows in a norm.
    """
    wide = out.to(reference.dtype)
    poison = poison_of(out.dtype)
    unwritten = out.isnan() if out.dtype.is_floating_point else out == int(poison)
    count = int((unwritten & reference.isfinite()).sum())
    if count:
        return float("inf"), Rejection.UNWRITTEN, f"{count} of {out.numel()} elements"
    scale = reference.norm().item() / max(reference.numel(), 1) ** 0.5 or 1.0
    distance = (wide - reference).norm().item() / ((reference.norm().item()) or 1.0)
    worst = (wide - reference).abs().max().item() / scale if out.numel() else 0.0
    if distance <= tolerance and worst <= _ELEMENT_FACTOR * tolerance:
        return worst, None, ""
    message = f"relative L2 error {distance:.2e}, largest element error {worst:.2e} RMS"
    return worst, Rejection.WRONG, message


def judge_like(
    out: torch.Tensor, expected: torch.Tensor, tolerance: float | None
) -> tuple[float, Rejection | None, str]:
    """Return what `judge_output` does, for an *expected* result of the same precision.

    Integers must be equal, and so must the elements that are infinite or NaN; elements that both
    left at the poison are equal. Without *tolerance* the other elements are not compared.
    """
    if not out.dtype.is_floating_point:
        count = int((out != expected).sum())
        message = f"{count} of {out.numel()} elements differ"
        return (float("inf"), Rejection.WRONG, message) if count else (0.0, None, "")
    is_narrow = out.dtype.itemsize < torch.float32.itemsize
    wide, wanted = (out.float(), expected.float()) if is_narrow else (out, expected)
    finite = wanted.isfinite()
    is_odd = (wide != wanted) & ~(wide.isnan() & wanted.isnan()) & ~(finite & wide.isfinite())
    if count := int(is_odd.sum()):
        unwritten = bool((wide.isnan() & finite).any())
        rejection = Rejection.UNWRITTEN if unwritten else Rejection.WRONG
        return float("inf"), rejection, f"{count} of {out.numel()} elements"
    if tolerance is None:
        return 0.0, None, ""
    if not bool(finite.all()):
        wide, wanted = wide[finite], wanted[finite]
    return judge_output(wide, wanted, tolerance)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Compute matmuls and convolutions of float32 in float32, not in TF32, while it is open."""
    torch_backends: Any = torch.backends
    gpu, dnn, cpu = torch_backends.cuda, torch_backends.cudnn, torch_backends.mkldnn
    backends = (gpu.matmul, dnn.conv, cpu.matmul, cpu.conv)
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
