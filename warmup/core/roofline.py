"""`Peaks` of a device, `Work` of a call, and `RecordedPlan`, the kernels of graphs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from warmup.core.errors import SettingsError
from warmup.core.rows import MAX_INT
from warmup.core.text import shown

_PER_US_TO_TERA: Final = 1e-6
_PER_US_TO_GIGA: Final = 1e-3
PASSES: Final = 2  # a loop over a reduction reads its input twice; an input may be written too


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The largest rates measured on a device, with the date and the SM clock of the measurement.

    ``tflops`` is by the short dtype name of the operands (``bf16``); ``gbps`` counts bytes read
    plus bytes written. ``clock_mhz`` is the clock after all of it, and ``clocks`` has, by dtype,
    the clock right after its matmuls, which a limit of power may have lowered; absent where it
    could not be read.
    """

    tflops: Mapping[str, float]
    gbps: float
    clock_mhz: int | None
    measured: str
    clocks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """The least work of a problem: operations (None where unknown) and bytes moved.

    ``most_moved`` bounds the bytes where a key has rounded sizes; None where ``moved`` is exact.
    """

    dtype: str
    flops: int | None
    moved: int
    most_moved: int | None = None


def tflops_of(flops: int, time_us: float) -> float:
    """Return the rate of *flops* operations in *time_us*, in TFLOP/s."""
    return flops / time_us * _PER_US_TO_TERA


def gbps_of(moved: int, time_us: float) -> float:
    """Return the rate of *moved* bytes in *time_us*, in GB/s."""
    return moved / time_us * _PER_US_TO_GIGA


def share_of_peak(peaks: Peaks, dtype: str, flops: int | None, moved: int, time_us: float) -> float:
    """Return the larger of a call's shares of the bandwidth peak and of the compute peak.

    The compute peak counts only where *flops* and the peak of *dtype* are known.
    """
    share = gbps_of(moved, time_us) / peaks.gbps
    peak = peaks.tflops.get(dtype)
    if flops and peak:
        share = max(share, tflops_of(flops, time_us) / peak)
    return share


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
        return Peaks(**msgspec.structs.asdict(self))

    @classmethod
    def of(cls, peaks: Peaks) -> PeaksJson:
        return msgspec.convert(asdict(peaks), cls)


# Dtype names: short ones (``bf16``) in keys, options and inputs, torch's (``bfloat16``) in
# trials.

# Those that an input or an option can name.
NAMED_DTYPES: Final = ("f64", "f32", "f16", "bf16", "i64", "i32", "i8", "u8", "bool")
_BITS: Final = re.compile(r"[a-z]+([0-9]+)")
_PREFIXES: Final = (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"))


def dtype_name(dtype: object) -> str:
    """Return the short name of the torch dtype *dtype*, such as ``bf16`` or ``f8_e4m3fn``."""
    name = str(dtype).removeprefix("torch.")
    for long, short in _PREFIXES:
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name


def torch_name(name: str) -> str:
    """Return torch's name of the dtype with the short *name*: ``bfloat16`` for ``bf16``."""
    for long, short in _PREFIXES:
        if name.startswith(short):
            return long + name.removeprefix(short)
    return name


def item_bytes(name: str) -> int:
    """Return the bytes of an element of the dtype with the short *name*, at least 1.

    The name says the bits: ``bf16``, ``i1`` (a bool in Triton's signatures), ``f8_e4m3fn``.
    """
    bits = _BITS.match(name)
    return max(int(bits[1]) // 8, 1) if bits else 1


# The kernels that compiled graphs launch, in order. A profiler's trace names kernels and neither
# the decision behind a kernel nor its work: a recording writes both beside the trace's events.

PLAN_NAME: Final = "warmup"  # of the trace's member that holds a `RecordedPlan`
PLAN_SCHEMA: Final = 1
BUCKET_MARK: Final = "warmup bucket "  # begins the annotation around each recorded call of a bucket

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]  # that rates can be computed from


class PlannedBy(StrEnum):
    """What makes a kernel."""

    TRITON = "triton"
    CPP = "cpp"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKernel:
    """A launch of the generated code, or a call of a library.

    ``name`` is the generated kernel's, or the operator of a library call (``aten.mm.out``).
    ``keys`` are those of the decisions behind it, that of its GEMM first. ``flops`` and ``moved``
    bytes are the least of a launch, None where the graph does not say.
    """

    name: str
    by: PlannedBy
    keys: tuple[str, ...]
    dtype: str
    flops: Count | None
    moved: Count | None


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """The kernels of one compiled graph; ``graph`` is its key in inductor's cache."""

    graph: str
    kernels: tuple[PlannedKernel, ...]


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """What a recording knows beside the events: the plans of each bucket's graphs, by bucket.

    ``calls`` are the calls of each bucket in the trace, ``clocks`` SM clocks in MHz while they ran,
    and ``table`` is the digest of the served table, if any.
    """

    plans: Mapping[str, tuple[GraphPlan, ...]]
    calls: int
    device: str
    torch: str
    table: str | None
    clocks: tuple[Count, ...]

    def to_json(self) -> dict[str, Any]:
        return {"schema": PLAN_SCHEMA, **asdict(self)}


def plan_from_json(document: Any, path: str) -> RecordedPlan:
    """Return the plan in *document*, which a trace at *path* has, or a SettingsError."""
    problem = "has another schema"
    if isinstance(document, dict) and document.get("schema") == PLAN_SCHEMA:
        try:
            return msgspec.convert(document, RecordedPlan)
        except (msgspec.ValidationError, RecursionError) as error:
            problem = f"is damaged ({shown(error)})"
    raise SettingsError(
        f"{shown(path)}: the member {PLAN_NAME!r} {problem}",
        "record the trace again with this warmup",
    )
