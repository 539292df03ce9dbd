"""Rates, and their share of the measured peaks of a device."""

from __future__ import annotations

import pytest

from warmup.core.roofline import Peaks, gbps_of, share_of_peak

PEAKS = Peaks(
    tflops={"bf16": 800.0, "f32": 50.0}, gbps=4000.0, clock_mhz=1980, measured="2026-01-02"
)
FLOPS, MOVED = 2 * 4096**3, 3 * 2 * 4096**2


def test_a_share_is_that_of_the_bound() -> None:
    """The nearer peak counts: compute for a large GEMM, and the lower one gives a larger share."""
    gemm = share_of_peak(PEAKS, "bf16", FLOPS, MOVED, 200.0)
    assert gemm == pytest.approx(FLOPS / 200.0 / 1e6 / 800)
    shares = [share_of_peak(PEAKS, dtype, FLOPS, MOVED, 5000.0) for dtype in ("bf16", "f32")]
    assert shares[1] == pytest.approx(shares[0] * 800 / 50)
    # Without a compute peak for the dtype, or without operations, bandwidth alone counts.
    for dtype, flops in (("i8", FLOPS), ("bf16", None), ("bf16", 0)):
        share = share_of_peak(PEAKS, dtype, flops, MOVED, 100.0)
        assert share == pytest.approx(gbps_of(MOVED, 100.0) / 4000), (dtype, flops)
