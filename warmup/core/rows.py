"""Choices, winners and rows: what a table records about one problem."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from warmup.core.method import Search

if TYPE_CHECKING:
    from warmup.core.search import Searched


class Family(StrEnum):
    """Where a choice comes from; only these can be forced at serving."""

    TEMPLATE = "template"
    EXTERN = "extern"
    SUBGRAPH = "subgraph"
    CPP = "cpp"
    LAUNCH = "launch"
    PAD = "pad"
    WEIGHT = "weight"


KwargValue = bool | int | str | None
MAX_INT = 2**31 - 1
_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "block_m", "block_n", "block_k")


@dataclass(frozen=True, slots=True)
class Winner:
    """The choice a row stands for: family, template or kernel uid, and its complete kwargs.

    ``kwargs`` is sorted by name. ``source_hash`` is inductor's hash of the template source, None
    for choices that have none.
    """

    family: Family
    uid: str
    kwargs: tuple[tuple[str, KwargValue], ...] = ()
    source_hash: str | None = None

    def __str__(self) -> str:
        if not self.kwargs:
            return self.uid
        return f"{self.uid}({','.join(f'{name}={value}' for name, value in self.kwargs)})"

    @property
    def tile(self) -> int:
        """The product of the block sizes; 1 for a choice without any."""
        return math.prod(
            value
            for name, value in self.kwargs
            if (name in _TILE or name.endswith("BLOCK")) and type(value) is int
        )

    @property
    def short(self) -> str:
        """The uid and the tile: what fits into a table column."""
        named = dict(self.kwargs)
        block = "x".join(
            str(named[name])
            for name in (*_TILE, *(name for name in named if name.endswith("BLOCK")))
            if name in named
        )
        extra = "".join(
            f" {letter}{named[name]}"
            for letter, name in (("w", "num_warps"), ("s", "num_stages"), ("k", "k_split"))
            if name in named
        )
        return f"{self.uid}{' ' + block if block else ''}{extra}"


def portable_kwargs(kwargs: Mapping[str, Any]) -> tuple[tuple[str, KwargValue], ...] | None:
    """Return *kwargs* sorted by name, or None when one of them cannot be written to a table."""
    portable: dict[str, KwargValue] = {}
    for name, value in kwargs.items():
        if value is None or isinstance(value, (bool, str)):
            portable[name] = value
        elif hasattr(value, "__index__") and -MAX_INT <= int(value) <= MAX_INT:
            portable[name] = int(value)
        else:
            return None
    return tuple(sorted(portable.items()))


class Rejection(StrEnum):
    """Why a candidate cannot win. Closed: a new one bumps the table's schema."""

    COMPILE = "compile"  # it did not compile
    LAUNCH = "launch"  # it could not be launched, for want of shared memory for example
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"  # the process that ran it died, or its device is lost
    TIMED_OUT = "timed_out"
    UNWRITTEN = "unwritten"  # part of its output was never written
    WRONG = "wrong"  # its output is not near enough to the reference
    IMPLAUSIBLE = "implausible"  # its time cannot be true


class Flag(StrEnum):
    """What a reader of a row should know. Closed, as above."""

    NEAR_TIE = "near_tie"  # others were within the band; the fixed order decided
    UNSTABLE = "unstable"  # the spread stayed too wide; the library default was kept
    OVER_PEAK = "over_peak"  # faster than the measured peak, also when measured again
    FAR_BELOW_PEAK = "far_below_peak"


class Scope(StrEnum):
    """What the times of a row are times of. Closed, as above."""

    BARE = "bare"  # the product alone
    FUSED = "fused"  # the product and what is compiled with it


@dataclass(frozen=True, slots=True)
class Timing:
    """One candidate's median time in microseconds, or why it has none.

    ``fused_us`` is that with what can be fused into it, where that was timed. ``along_us`` are its
    times at smaller sizes of the key's range, by size, where it was run there.
    """

    winner: Winner
    time_us: float | None
    rejection: Rejection | None = None
    said: str = ""
    fused_us: float | None = None
    along_us: tuple[tuple[int, float | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why a winner won. Times are medians in microseconds.

    ``library_us`` is the time of the library default, None when no library kernel was a candidate.
    ``spread`` is the distance between the winner's quartiles over its median, ``band`` the share of
    the fastest time within which candidates tied, ``error`` the largest element error against the
    reference in units of the reference's root mean square. Rates and ``peak_share`` are None where
    the work or the device's peaks are unknown, ``clock_mhz`` where the SM clock could not be read.

    With the scope ``fused`` the three times, spread, band and error are those of the product and
    what is compiled with it. ``bare_us`` is the winner's time of the product alone, which the rates
    are of then. ``search`` says which candidates there were.

    Of a key with a range ``along`` has sizes of it, ascending, the last of them the one that the
    times are of, and the winner's time over the best there; None where it was not timed or shook.
    """

    time_us: float
    library_us: float | None
    runner_up: str | None
    runner_up_us: float | None
    tried: int
    rejected: tuple[tuple[Rejection, int], ...] = ()
    spread: float | None = None
    band: float | None = None
    error: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    peak_share: float | None = None
    clock_mhz: int | None = None
    flags: tuple[Flag, ...] = ()
    scope: Scope = Scope.BARE
    bare_us: float | None = None
    search: Search = Search.DEFAULT
    along: tuple[tuple[int, float | None], ...] = ()

    @property
    def failed(self) -> int:
        """How many candidates were rejected."""
        return sum(count for _, count in self.rejected)


@dataclass(frozen=True, slots=True)
class Row:
    """One answer: the winner for a key, and the evidence for it."""

    winner: Winner
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Tuned:
    """One finished problem of a build: its key, its row and every candidate's timing.

    ``searched`` says how a GEMM selection came to its candidates, None for every other decision.
    """

    key: str
    row: Row
    timings: tuple[Timing, ...]
    searched: Searched | None = None


class MissReason(StrEnum):
    """Why no row answered. Closed: renaming one bumps the event schema."""

    NOT_IN_TABLE = "not_in_table"
    DYNAMIC_DIM = "dynamic_dim"
    WRONG_DEVICE = "wrong_device"
    WRONG_RUNTIME = "wrong_runtime"
    TEMPLATE_ABSENT = "template_absent"
    TEMPLATE_CHANGED = "template_changed"
    CHOICE_REJECTED = "choice_rejected"
    NOT_DESCRIBED = "not_described"
    CACHED_MISS = "cached_miss"
