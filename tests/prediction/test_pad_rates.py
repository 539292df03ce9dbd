"""Rates of GEMMs, fitted to samples of stated times."""

from __future__ import annotations

import pytest

from warmup.prediction.pad.estimate import USUAL_RATES
from warmup.prediction.pad.features import PadSizes, pad_sizes_of
from warmup.prediction.pad.rates import LEAST_OF_RATE, fit_rates
from warmup.prediction.pad.samples import PadSample

KEY = "pad mm m=8192 n=8192 k=8191 bf16 a=row b=col"  # rows of a multiple of 2 bytes


def stated(as_is_rate: float, padded_rate: float, key: str = KEY) -> tuple[PadSample, PadSizes]:
    """Return a sample that reached such rates, the copies of the padding apart."""
    sizes = pad_sizes_of(key)
    assert sizes is not None
    operations, padded_operations = sizes.ways.operations
    as_is_us = operations / as_is_rate
    padded_us = padded_operations / padded_rate + sizes.ways.copies_us
    return PadSample(key, "random", sizes, as_is_us, padded_us, None), sizes


def test_a_rate_is_the_median_of_what_samples_reach() -> None:
    """Rows of 2 bytes as they are, of 16 bytes padded; the copies are no part of the rate."""
    rates = fit_rates([stated(100e6 + step * 1e6, 500e6) for step in (0, 1, 2, 70, 80)])
    assert rates.half[1] == 102e6
    assert rates.half[-1] == 500e6


def test_a_rate_of_few_samples_is_the_usual_rate() -> None:
    """Three samples are too few; and no sample is of other alignments or units."""
    few = fit_rates([stated(100e6, 500e6)] * (LEAST_OF_RATE - 1))
    assert few == USUAL_RATES
    enough = fit_rates([stated(100e6, 500e6)] * LEAST_OF_RATE)
    assert (enough.half[0], *enough.half[2:4]) == (USUAL_RATES.half[0], *USUAL_RATES.half[2:4])
    assert (enough.tf32, enough.float32) == (USUAL_RATES.tf32, USUAL_RATES.float32)


@pytest.mark.parametrize("fp32", ["tf32", "ieee"])
def test_float32_with_and_without_tensor_cores_have_rates_of_their_own(fp32: str) -> None:
    """Eight kibibytes of columns and an odd k: rows of 4 bytes."""
    key = f"pad mm m=8192 n=8192 k=8191 f32 a=row b=col fp32={fp32}"
    rates = fit_rates([stated(40e6, 50e6, key)] * LEAST_OF_RATE)
    fitted, other = (rates.tf32, rates.float32) if fp32 == "tf32" else (rates.float32, rates.tf32)
    assert (fitted[2], fitted[-1]) == (40e6, 50e6)
    assert other in {USUAL_RATES.tf32, USUAL_RATES.float32}


def test_a_sample_that_memory_limits_says_nothing_of_a_rate() -> None:
    """With 8 columns, moving the operands takes longer than multiplying them."""
    narrow = "pad mm m=65536 n=8 k=4095 bf16 a=row b=col"
    assert fit_rates([stated(100e6, 500e6, narrow)] * 10) == USUAL_RATES
