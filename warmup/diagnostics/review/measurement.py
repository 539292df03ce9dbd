"""`Measurement`: one time with what is known of its call; `Doubt`: a reason not to believe it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from warmup.core.roofline import Peaks, Work


class Level(StrEnum):
    """How far a number is doubted: measure it again, or look at it."""

    WRONG = "wrong"
    LOOK = "look"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One time of ``subject``, in microseconds on the device.

    ``work`` is what the call does at least, and ``work_us`` the time of that part of the call, the
    whole time by default. ``total_us`` is the time with the host, ``spread`` the distance between
    the quartiles over the median, ``library_us`` the time of the library's kernel for the same
    problem, and ``band`` the share within which two times count as equal. ``series`` has, by a name
    that only measurements of the same call at other sizes share, the size. ``call`` names a kernel
    and the product that it computes, which other measurements may have timed too, and has its time.
    ``remarks`` are doubts of the measurement itself. ``is_repeated``: the time was beyond a peak,
    and a second measurement of it was too. ``is_cold`` is false where a part of the call may have
    found in a cache what another part had written.
    """

    subject: str
    time_us: float
    work: Work | None = None
    work_us: float | None = None
    total_us: float | None = None
    library_us: float | None = None
    band: float = 0.0
    spread: float | None = None
    clock_mhz: int | None = None
    series: Mapping[str, int] = field(default_factory=dict)
    call: tuple[str, float] | None = None
    remarks: tuple[str, ...] = ()
    is_repeated: bool = False
    is_cold: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """All measurements of a file, with the peaks that they are held against.

    ``is_cold``: calls found their operands in memory, and not in a cache. ``latency_us`` is what a
    call takes that does nothing. ``origin`` says where the peaks come from.
    """

    measurements: tuple[Measurement, ...]
    peaks: Peaks | None
    origin: str
    is_cold: bool
    latency_us: float


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason not to believe the time of ``subject``; those with more ``weight`` come first."""

    level: Level
    subject: str
    reason: str
    weight: float
