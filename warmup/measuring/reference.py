"""What a product should be: computed in higher precision, and how far a result is from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from warmup.core.rows import Rejection
from warmup.core.trial import Trial
from warmup.measuring.operands import poison_of

_ELEMENT_FACTOR: Final = 10  # one element may be so many tolerances away, in units of the RMS


def reference_of(trial: Trial, operands: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return what *trial* should compute from *operands*, in float32; in float64 for float32.

    None when no reference is known for its op.
    """
    if any(operand.layout is not torch.strided for operand in operands):
        return None  # packed, as mkldnn wants it
    wide = wide_dtype(operands[-1].dtype)
    with full_precision():
        return _product(trial, [operand.to(wide) for operand in operands])


def widened(out: torch.Tensor) -> torch.Tensor:
    """Return *out* in the precision that references have."""
    return out.to(wide_dtype(out.dtype))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32; for float32, and for integers, whose products it holds exactly, float64."""
    is_narrow = dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize
    return torch.float32 if is_narrow else torch.float64


def _product(trial: Trial, wide: list[torch.Tensor]) -> torch.Tensor | None:
    match trial.op, wide:
        case (("mm" | "bmm" | "int_mm"), [a, b]):
            return torch.matmul(a, b)
        case (("addmm" | "baddbmm"), [bias, a, b]):
            return trial.beta * bias + trial.alpha * torch.matmul(a, b)
        case "mm_plus_mm", [a, b, c, d]:
            return torch.matmul(a, b) + torch.matmul(c, d)
        case "scaled_mm", [a, b, scale_a, scale_b, *bias]:
            if not _spans(scale_a, a.shape[0], 1) or not _spans(scale_b, 1, b.shape[1]):
                return None  # scaled in blocks
            product = torch.matmul(a * scale_a, b * scale_b)
            return product + bias[0] if bias else product
    return None


def _spans(scale: torch.Tensor, rows: int, cols: int) -> bool:
    """Whether *scale* is one value, or one for each row or column."""
    return scale.numel() == 1 or tuple(scale.shape) == (rows, cols)


def judge_output(
    out: torch.Tensor, reference: torch.Tensor, tolerance: float
) -> tuple[float, Rejection | None, str]:
    """Return the largest element error of *out*, and why it is rejected if it is.

    The error is in units of the reference's root mean square. *out* is wrong when its relative L2
    distance is above *tolerance*, or one element is further away than ten times that: a small part
    that is wrong hardly shows in a norm.
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
    said = f"relative L2 error {distance:.2e}, largest element error {worst:.2e} RMS"
    return worst, Rejection.WRONG, said


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 matrices in float32 inside, not in TF32."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
