"""`fit_rates`: what the GEMMs of a device's samples reach, for the estimated gain.

A sample says what either way reaches where arithmetic limits that way. The rate is the median of
such samples, or the usual rate where there are too few.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from warmup.prediction.pad.estimate import ALIGNMENTS, UNITS, USUAL_RATES, GemmRates
from warmup.prediction.pad.features import PadSizes
from warmup.prediction.pad.samples import PadSample

LEAST_OF_RATE: Final = 4  # samples that a rate is the median of
_LIMITS: Final = 2.0  # arithmetic limits a way where it takes so many times what all else takes


def fit_rates(samples: Iterable[tuple[PadSample, PadSizes]]) -> GemmRates:
    """Return the rates that *samples* reached; to three digits."""
    reached: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one, sizes in samples:
        ways = sizes.ways
        usual = getattr(USUAL_RATES, ways.unit)
        sides = zip(
            (one.as_is_us, one.padded_us),
            ways.operations,
            ways.least_us,
            (0.0, ways.copies_us),
            (ways.alignment, ALIGNMENTS - 1),
            strict=True,
        )
        for time_us, operations, least_us, copies_us, alignment in sides:
            gemm_us = time_us - copies_us
            arithmetic_us = min(operations / usual[alignment], gemm_us)
            if arithmetic_us >= _LIMITS * max(least_us, copies_us):
                reached[ways.unit, alignment].append(operations / gemm_us)
    return GemmRates(**{unit: _rates(unit, reached) for unit in UNITS})


def _rates(unit: str, reached: dict[tuple[str, int], list[float]]) -> tuple[float, ...]:
    usual = getattr(USUAL_RATES, unit)
    found = (reached.get((unit, alignment), []) for alignment in range(ALIGNMENTS))
    return tuple(
        float(f"{statistics.median(each):.3g}") if len(each) >= LEAST_OF_RATE else rate
        for rate, each in zip(usual, found, strict=True)
    )
