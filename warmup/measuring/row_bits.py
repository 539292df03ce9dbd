"""`Probe` and `bits_of_rows`: the digest of a row of a product, by which candidates are compared.

A candidate is called on operands whose rows are all equal. Its digest is that of a row of its
output: candidates with one digest, at one number of rows or at several, add up the products of a
row in the same order. The digests are measured, not derived from a kernel's source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from warmup.core.trial import Operands, without_repeats

_DIGITS: Final = 16
_SEED: Final = 271_828
# The operands that are the same for every row, by op; operands of linears on a CPU are views of
# weights, which `Operands.fixed` names.
_SHARED: Final = {
    **dict.fromkeys(("mm", "int_mm", "bmm"), frozenset({1})),
    **dict.fromkeys(("addmm", "baddbmm"), frozenset({2})),
    **dict.fromkeys(("mm_plus_mm", "scaled_mm"), frozenset({1, 3})),
}
_SCALES: Final = (2, 3)  # of scaled_mm
# The largest power of two by which a value is scaled: narrow floats overflow.
_EXPONENTS: Final = {torch.float16: 4, torch.float8_e4m3fn: 1, torch.float8_e5m2: 2}
_WIDE_EXPONENTS: Final = 8
_SAMPLE_EXPONENTS: Final = 4  # float16 holds them
_ODD_VALUES: Final = (float("nan"), float("inf"), float("-inf"), 1e30, 1e-40)


@dataclass(frozen=True, slots=True)
class Probe:
    """The operands of set 0 of *sets*, of a GEMM *op*, to be filled with values that show an order.

    Their exponents are wide, and in half of the output's columns the products cancel, so that what
    is left is the rounding of the sum.
    """

    op: str
    sets: Operands

    def fill(self) -> None:
        """Make all rows equal; the values depend on the position of the operand and its columns."""
        for number, view in self._changeable():
            is_shared = number in _SHARED.get(self.op, ())
            target = without_repeats(view)
            # The dim before the last one counts rows, or of a shared operand what is summed.
            kept = target.dim() - (1 if not is_shared else min(2, target.dim()))
            sizes = [1] * kept + list(target.shape[kept:])
            is_scale = self.op == "scaled_mm" and number in _SCALES
            target.copy_(self._values(number, sizes, view, is_scale=is_scale).expand(target.shape))

    def disturb(self) -> bool:
        """Fill every second row with infinities, NaN and other values; False where there is one."""
        changed = False
        for number, view in self._changeable():
            target = without_repeats(view)
            has_rows = number not in _SHARED.get(self.op, ()) and target.dim() > 1
            if not (has_rows and target.is_floating_point() and target.shape[-2] > 1):
                continue
            rows = target[..., 1::2, :]
            odd = torch.tensor(_ODD_VALUES, device=view.device).repeat(rows.shape[-1])
            rows.copy_(odd[: rows.shape[-1]].expand(rows.shape))
            changed = True
        return changed

    def _changeable(self) -> Iterator[tuple[int, torch.Tensor]]:
        for number, view in enumerate(self.sets.views(0)):
            if number not in self.sets.fixed and view.layout is torch.strided and view.numel():
                yield number, view

    def _values(
        self, number: int, sizes: Sequence[int], like: torch.Tensor, *, is_scale: bool
    ) -> torch.Tensor:
        source = torch.Generator(device=like.device).manual_seed(_SEED + number)
        if not like.is_floating_point():
            return torch.randint(-8, 8, sizes, device=like.device, generator=source)
        if is_scale:
            values = torch.empty(sizes, device=like.device).normal_(generator=source)
            return values.abs_().add_(0.5)
        values = _drawn(sizes, source, _EXPONENTS.get(like.dtype, _WIDE_EXPONENTS))
        is_shared = number in _SHARED.get(self.op, ())
        if is_shared and len(sizes) > 1:  # the second half of what is summed takes back the first
            half = sizes[-2] // 2
            values[..., half : 2 * half, ::2] = -values[..., :half, ::2]
        elif not is_shared and len(sizes) > 1 and self._is_summed(number):
            half = sizes[-1] // 2
            values[..., half : 2 * half] = values[..., :half]
        return values

    def _is_summed(self, number: int) -> bool:
        """Whether the last dim of operand *number* is summed: it stands before a shared operand."""
        return number + 1 in _SHARED.get(self.op, ()) and not (
            self.op == "scaled_mm" and number in _SCALES
        )


def _drawn(sizes: Sequence[int], source: torch.Generator, most: int) -> torch.Tensor:
    """Return normal values times powers of two from -*most* to *most*."""
    device = source.device
    values = torch.empty(sizes, device=device).normal_(generator=source)
    exponents = torch.randint(-most, most + 1, sizes, device=device, generator=source)
    return values * torch.exp2(exponents.float())


def fill_samples(x: torch.Tensor, w: torch.Tensor) -> None:
    """Give every sample of *x* the same values, for a convolution with *w*, as `Probe` does.

    The values do not depend on the number of samples.
    """
    source = torch.Generator(device=x.device).manual_seed(_SEED)
    sample = _drawn((1, *x.shape[1:]), source, _SAMPLE_EXPONENTS)
    weights = _drawn(w.shape, source, _SAMPLE_EXPONENTS)
    half = w.shape[1] // 2
    sample[:, half : 2 * half] = sample[:, :half]
    weights[::2, half : 2 * half] = -weights[::2, :half]
    x.copy_(sample.expand(x.shape))
    w.copy_(weights)


def disturb_samples(x: torch.Tensor) -> None:
    """Fill every second sample with infinities or NaN."""
    x[1::2] = float("nan")
    x[1::4] = float("inf")


def bits_of_rows(out: torch.Tensor, step: int = 1) -> str | None:
    """Return the digest of a row of *out*; None where each *step*-th row does not have its bits."""
    if out.dim() < 2 or not out.numel():  # noqa: PLR2004  a matrix, or several
        return None
    rows = out[..., ::step, :].reshape(-1, out.shape[-1]).contiguous().view(torch.uint8)
    if not bool((rows == rows[:1]).all()):
        return None
    return hashlib.sha256(rows[0].cpu().numpy().tobytes()).hexdigest()[:_DIGITS]


def has_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one shape and dtype have the same bits; NaN may be equal."""
    ours, others = (each.reshape(-1).view(torch.uint8) for each in (one, other))
    return torch.equal(ours, others)
