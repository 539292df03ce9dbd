"""Rates, and their share of the measured peaks of a device."""

from __future__ import annotations

import pytest

from warmup.core.roofline import Peaks, gbps_of, share_of_peak

PEAKS = Peaks(
    tflops={"bf16": 800.0, "f32": 50.0}, gbps=4000.0, clock_mhz=1980, measured="2026-01-02"
)
FLOPS, MOVED = 2 * 4096**3, 3 * 2 * 4096**2


def test_the_nearer_peak_counts() -> None:
    """A large GEMM is close to the compute peak, a copy of as many bytes to the bandwidth peak."""
    time_us = 200.0
    gemm = share_of_peak(PEAKS, "bf16", FLOPS, MOVED, time_us)
    copy = share_of_peak(PEAKS, "bf16", 1, MOVED, time_us)
    assert gemm == pytest.approx(FLOPS / time_us / 1e6 / 800)
    assert copy == pytest.approx(MOVED / time_us / 1e3 / 4000)
    assert gemm > copy


def test_a_share_is_that_of_the_bound() -> None:
    """The same GEMM in the same time has a larger share of a lower peak."""
    shares = [share_of_peak(PEAKS, dtype, FLOPS, MOVED, 5000.0) for dtype in ("bf16", "f32")]
    assert shares[1] == pytest.approx(shares[0] * 800 / 50)
    # Without a compute peak for the dtype, or without operations, bandwidth alone counts.
    for dtype, flops in (("i8", FLOPS), ("bf16", None), ("bf16", 0)):
        share = share_of_peak(PEAKS, dtype, flops, MOVED, 100.0)
        assert share == pytest.approx(gbps_of(MOVED, 100.0) / 4000), (dtype, flops)
