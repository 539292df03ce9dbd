"""`review_table`: the rows of a table as measurements, and the peaks that they were held against.

A table of an earlier warmup has no peaks of its own. They follow from its rows: a rate over its
share of the peak is at most the peak, and is the peak for the rows that this rate bounds.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from warmup.core.method import L2
from warmup.core.ranking import bare_ranked
from warmup.core.roofline import Peaks
from warmup.core.rows import Family, Flag, Row, Scope, is_for_host
from warmup.diagnostics.review.measurement import Measurement, Reviewed
from warmup.keys.registry import ingredients_of, product_of, work_of
from warmup.table import Table

GPU_LATENCY_US: Final = 5.0  # of an empty kernel, from its launch to its end
CPU_LATENCY_US: Final = 20.0  # of an operator that wakes the threads of its pool
_READABLE_SHARE: Final = 0.1  # from here on three digits say something about the peak
_LIBRARY: Final = "the library's kernel"
_UNPADDED: Final = "as_is"
_REMARKS: Final = {
    Flag.UNSTABLE: "the times varied too much; the library's kernel was kept",
    Flag.OVER_PEAK: "faster than the measured peak, in a second measurement too",
    Flag.FAR_BELOW_PEAK: "far below the measured peak when it was built",
}


def review_table(table: Table, peaks: Peaks | None = None) -> Reviewed:
    """Return the rows of *table* as measurements, with *peaks*, or else those of the table."""
    own = table.provenance.peaks
    if peaks is not None:
        origin = "given"
    elif own is not None:
        peaks, origin = own, "stored with the table"
    else:
        peaks, origin = implied_peaks(table), "implied by the rows"
    is_cpu = table.provenance.runtime.device.type == "cpu"
    return Reviewed(
        measurements=tuple(_measurement(key, row) for key, row in table.rows.items()),
        peaks=peaks,
        origin=origin,
        is_cold=table.policy.timing.l2 is L2.COLD,
        latency_us=CPU_LATENCY_US if is_cpu else GPU_LATENCY_US,
    )


def implied_peaks(table: Table) -> Peaks | None:
    """Return the peaks that the shares in *table* were computed with; None without shares."""
    gbps, tflops = 0.0, defaultdict[str, float](float)
    clocks = []
    for key, row in table.rows.items():
        found, work = row.evidence, work_of(key)
        if found.peak_share is None or found.peak_share < _READABLE_SHARE or work is None:
            continue
        gbps = max(gbps, (found.gbps or 0) / found.peak_share)
        tflops[work.dtype] = max(tflops[work.dtype], (found.tflops or 0) / found.peak_share)
        clocks += [found.clock_mhz] if found.clock_mhz is not None else []
    if not gbps:
        return None
    rates = {dtype: round(rate, 1) for dtype, rate in tflops.items() if rate}
    return Peaks(
        tflops=rates,
        gbps=round(gbps, 1),
        clock_mhz=max(clocks, default=None),
        measured=table.provenance.created[:10],
    )


def _measurement(key: str, row: Row) -> Measurement:
    found = row.evidence
    return Measurement(
        subject=key,
        time_us=found.time_us,
        work=work_of(key),
        work_us=found.bare_us if found.scope is Scope.FUSED else None,
        # A winner for the host may be slower than the library's kernel.
        library_us=None if is_for_host(found) else found.library_us,
        band=max(found.band or 0, *(ratio - 1 for _, ratio in found.along if ratio), 0),
        spread=found.spread,
        clock_mhz=found.clock_mhz,
        series=_series(key, row),
        call=_call(key, row),
        is_repeated=Flag.OVER_PEAK in found.flags,
        remarks=tuple(_REMARKS[flag] for flag in found.flags if flag in _REMARKS),
    )


def _call(key: str, row: Row) -> tuple[str, float] | None:
    """Return the kernel and the product whose time *row* has, with the time.

    For a pad row that is the product as it is, by the library's kernel.
    """
    product, found = product_of(key), row.evidence
    time_us = found.bare_us if found.scope is Scope.FUSED else found.time_us
    is_library = row.winner.family is Family.EXTERN and row.winner.uid.startswith("aten::")
    if row.winner.family is Family.PAD:
        own = {name: own_us for own_us, name in bare_ranked(found)}
        is_own = found.scope is Scope.BARE  # of a region the times are not those of the product
        time_us, is_library = found.library_us if is_own else own.get(_UNPADDED), True
    if product is None or time_us is None:
        return None
    return f"{product} by {_LIBRARY if is_library else row.winner}", time_us


def _series(key: str, row: Row) -> dict[str, int]:
    """Return the number of rows by the key without them; nothing where a key has no such size."""
    named = ingredients_of(key)
    size = named.get("m", "").rpartition("..")[2]
    if not size:
        return {}
    others = key.replace(f" m={named['m']} ", " m=* ", 1)
    return {f"{others} {row.evidence.scope}": int(size)}
