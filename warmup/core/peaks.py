"""`PeaksJson`: measured peaks in a table, in the cache of peaks and in documents of benchmarks."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from warmup.core.roofline import Peaks
from warmup.core.rows import MAX_INT

_Dtype = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]{0,31}\Z")]
_Clock = Annotated[int, Meta(ge=1, le=MAX_INT)]
_Rate = Annotated[float, Meta(ge=1e-6, le=1e9)]


class PeaksJson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A `Peaks`."""

    clock_mhz: _Clock | None
    clocks: dict[_Dtype, _Clock]
    gbps: _Rate
    measured: Annotated[str, Meta(max_length=32)]
    tflops: dict[_Dtype, _Rate]

    def peaks(self) -> Peaks:
        """Return the peaks."""
        return Peaks(**msgspec.structs.asdict(self))

    @classmethod
    def of(cls, peaks: Peaks) -> PeaksJson:
        """Return *peaks* as they are written."""
        return cls(
            clock_mhz=peaks.clock_mhz,
            clocks=dict(peaks.clocks),
            gbps=float(peaks.gbps),
            measured=peaks.measured,
            tflops={name: float(rate) for name, rate in peaks.tflops.items()},
        )
