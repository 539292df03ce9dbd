"""`Row`: what a table holds for a key, the winner and the evidence for it.

`Method` and `Search` say how candidates are timed, and which a build tries. Nothing here knows how
keys are written or how tables are stored.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from warmup.core.errors import SettingsError

TOP_K: Final = 4
MAX_TOP_K: Final = 64
SEED: Final = 0  # of operands, inputs and models

OptionValue = bool | int | float | str | None  # of an inductor option


class Launch(StrEnum):
    """How calls of a comparison are launched: one at a time, or as one CUDA graph."""

    EAGER = "eager"
    CUDAGRAPH = "cudagraph"


class L2(StrEnum):
    """Whether the operands of a timed call are in the GPU's last cache: none of them, or all."""

    COLD = "cold"
    WARM = "warm"


class Search(StrEnum):
    """Which candidates a GEMM selection has beyond inductor's own list; narrowest first."""

    IMPORTED = "imported"  # the configs of torch's lookup table and the library's kernels
    DEFAULT = "default"  # persistent TMA templates
    WIDE = "wide"  # also more splits of K, extra tiles, and tiles of neighbouring rows
    EXHAUSTIVE = "exhaustive"  # also every tile of inductor's exhaustive list

    def is_narrower_than(self, other: Search) -> bool:
        order = list(Search)
        return order.index(self) < order.index(other)


class Effort(StrEnum):
    """Which rows a build searches whole, beyond the candidates of default mode."""

    SHARE = "share"  # those that take at least half a percent of a bucket's device time
    FULL = "full"  # all


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How candidates are timed, and when two times tie.

    Candidates within ``near_tie`` of the fastest, as a share of its time, tie with it. A row whose
    spread (distance between the quartiles over the median) stays above ``max_spread`` keeps the
    library default. The library default and ``fused_top_k`` others are also timed with the
    operations that inductor can fuse into the GEMM; with 0 every GEMM is timed alone.
    """

    l2: L2 = L2.COLD
    near_tie: float = 0.03
    max_spread: float = 0.10
    fused_top_k: int = TOP_K


# `COMPILE_MODES`: the modes of torch.compile.

GRAPH_MODES: Final = ("reduce-overhead", "max-autotune")  # those that record CUDA graphs
COMPILE_MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


# `read_flag`: a switch that an argument or an environment variable turns on.


def read_flag(argument: bool | None, variable: str) -> bool:  # noqa: FBT001  passed on
    """Return *argument* or, where it is None, whether the environment *variable* is ``1``.

    Unset, empty and ``0`` mean off; a SettingsError for any other value.
    """
    if argument is not None:
        return argument
    value = os.environ.get(variable, "")
    if value not in {"", "0", "1"}:
        raise SettingsError(f"{variable}={value!r} is neither on nor off", "set it to 1 or to 0")
    return value == "1"


# `SearchCounts`: how many candidates a decision had, by where they came from.

_Name = TypeVar("_Name", bound=StrEnum)


class CandidateSource(StrEnum):
    """Where a candidate beyond inductor's own list comes from."""

    TMA = "tma"
    FEW_ROWS = "few_rows"  # templates of warmup's own
    ALGORITHMS = "algorithms"  # of cuBLASLt
    VARIATIONS = "variations"  # of the fastest of these
    SPLITS = "splits"
    NEIGHBOURS = "neighbours"
    TILES = "tiles"
    EXHAUSTIVE = "exhaustive"
    LISTED_LONGER = "listed_longer"  # of a launch config: what inductor lists under max-autotune
    GRID = "grid"
    DESCENT = "descent"


class Resource(StrEnum):
    """A resource of which a candidate's launch needs more than the device has."""

    SHARED_MEMORY = "shared_memory"
    REGISTERS = "registers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCounts:
    """How many candidates a decision had.

    ``listed`` counts inductor's own, ``added`` the others by source; a candidate of several counts
    for the first. ``pruned`` counts, by resource, those whose launch is impossible, ``spilling``
    those of the added that spill registers, and ``left_out`` those that the bound of a search kept
    from being tried.
    """

    search: Search
    listed: int
    added: tuple[tuple[CandidateSource, int], ...] = ()
    pruned: tuple[tuple[Resource, int], ...] = ()
    spilling: int = 0
    left_out: int = 0

    @property
    def tried(self) -> int:
        """The number of candidates to compile and measure."""
        return self.listed + sum(count for _, count in self.added)

    def completed(self, offered: int) -> SearchCounts:
        """Return these counts for a selection of *offered* candidates; the rest count as listed.

        Inductor adds C++ templates, and all candidates of a CPU linear, outside of the counted
        lists.
        """
        return replace(self, listed=self.listed + max(offered - self.tried, 0))

    @property
    def by_source(self) -> str:
        """The counts as words, such as ``18 listed, 7 tma``; those that are zero are left out."""
        parts = [f"{self.listed} listed"]
        parts += [f"{count} {source}" for source, count in self.added]
        parts += [f"{count} pruned by {resource}" for resource, count in self.pruned]
        parts += [f"{self.spilling} spilling"] if self.spilling else []
        parts += [f"{self.left_out} left out"] if self.left_out else []
        return ", ".join(parts)

    def __str__(self) -> str:
        return f"{self.search}: {self.by_source}"

    def __add__(self, later: SearchCounts) -> SearchCounts:
        return replace(
            later,
            listed=self.listed + later.listed,
            added=_sum(self.added, later.added),
            pruned=_sum(self.pruned, later.pruned),
            spilling=self.spilling + later.spilling,
            left_out=self.left_out + later.left_out,
        )


def search_to_json(counts: SearchCounts) -> dict[str, Any]:
    """Return *counts* as JSON values; those by source and by resource are objects."""
    return {**asdict(counts), "added": dict(counts.added), "pruned": dict(counts.pruned)}


def _sum(
    a: tuple[tuple[_Name, int], ...], b: tuple[tuple[_Name, int], ...]
) -> tuple[tuple[_Name, int], ...]:
    return tuple((Counter(dict(a)) + Counter(dict(b))).items())


CUBLASLT: Final = "CUBLASLT"  # among the backends of a build: winners may be of `Family.BLAS`


class Family(StrEnum):
    """Where a winner comes from; only choices of these families can be forced at serving."""

    TEMPLATE = "template"
    EXTERN = "extern"
    BLAS = "blas"  # an algorithm of cuBLASLt
    SUBGRAPH = "subgraph"
    CPP = "cpp"
    LAUNCH = "launch"
    PAD = "pad"
    REDUCTION = "reduction"
    WEIGHT = "weight"


KwargValue = bool | int | str | None
_NUMBERS: Final = "id tile stages splitk red swizzle custom inner cluster"
# The config of an algorithm of cuBLASLt, as TunableOp of torch 2.15 spells it.
ALGORITHM_CONFIG: Final = "_".join(f"{name}_[0-9]{{1,9}}" for name in _NUMBERS.split())
# Inductor pastes template kwargs into kernel source: a text is a Triton dtype or a plain name.
KWARG_WORD: Final = rf"tl\.[a-z0-9]{{1,24}}|[A-Za-z0-9_]{{0,32}}|{ALGORITHM_CONFIG}"
MAX_INT = 2**31 - 1
_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "block_m", "block_n", "block_k")
_SHORT_KWARGS: Final = {"num_warps": "w", "num_stages": "s", "k_split": "k", "parts": ""}
_FUSED_WORDS: Final = {None: "", True: " fused", False: " not fused"}


@dataclass(frozen=True, slots=True)
class Winner:
    """The choice of a row: its family, the uid of its template or kernel, and its complete kwargs.

    ``kwargs`` is sorted by name. ``source_hash`` is inductor's hash of the template's source, None
    for a choice without a template. ``fused`` says whether inductor must fuse the operations around
    the GEMM into the kernel of the template (True) or must not (False); None leaves that to
    inductor, as for every choice that is no template.
    """

    family: Family
    uid: str
    kwargs: tuple[tuple[str, KwargValue], ...] = ()
    source_hash: str | None = None
    fused: bool | None = None

    def __str__(self) -> str:
        kwargs = ",".join(f"{name}={value}" for name, value in self.kwargs)
        return f"{self.uid}{f'({kwargs})' if kwargs else ''}{_FUSED_WORDS[self.fused]}"

    @property
    def choice(self) -> Winner:
        """The same choice without a decision about fusion, as inductor lists it."""
        return self if self.fused is None else replace(self, fused=None)

    def names(self, candidate: Winner) -> bool:
        """Whether *candidate* has the uid of this choice and all of its kwargs, 0 where absent."""
        kwargs = dict(candidate.kwargs)
        return self.uid == candidate.uid and all(
            kwargs.get(name, 0) == value for name, value in self.kwargs
        )

    @property
    def tile(self) -> int:
        """The product of the block sizes; 1 for a choice without block sizes."""
        return math.prod(
            value
            for name, value in self.kwargs
            if (name in _TILE or name.endswith("BLOCK")) and type(value) is int
        )

    @property
    def short(self) -> str:
        """The uid and what is tuned, without what follows from that, for a printed column."""
        kwargs = dict(self.kwargs)
        block = "x".join(
            str(kwargs[name])
            for name in (*_TILE, *(name for name in kwargs if name.endswith("BLOCK")))
            if name in kwargs
        )
        block = block or re.sub("_?[a-z]+_", ".", str(kwargs.get("algorithm", "")))[1:]
        extra = "".join(
            f" {letter}{kwargs[name]}" for name, letter in _SHORT_KWARGS.items() if name in kwargs
        )
        return f"{self.uid}{' ' + block if block else ''}{extra}{_FUSED_WORDS[self.fused]}"


class Algorithm(NamedTuple):
    """An algorithm of cuBLASLt, as kwargs of a winner: its config, and the version that has it."""

    algorithm: str
    cublas: int

    @classmethod
    def of(cls, winner: Winner) -> Algorithm | None:
        """Return the algorithm that the kwargs of *winner* name, None where they name none."""
        match dict(winner.kwargs):
            case {"algorithm": str(config), "cublas": int(cublas), **others}:
                if not others and re.fullmatch(ALGORITHM_CONFIG, config):
                    return cls(config, cublas)
        return None


def portable_kwargs(kwargs: Mapping[str, Any]) -> tuple[tuple[str, KwargValue], ...] | None:
    """Return *kwargs* sorted by name, or None when a value cannot be written to a table."""
    portable: dict[str, KwargValue] = {}
    for name, value in kwargs.items():
        is_word = isinstance(value, str) and re.fullmatch(KWARG_WORD, value)
        if value is None or isinstance(value, bool) or is_word:
            portable[name] = value
        elif hasattr(value, "__index__") and -MAX_INT <= int(value) <= MAX_INT:
            portable[name] = int(value)
        else:
            return None
    return tuple(sorted(portable.items()))


class Rejection(StrEnum):
    """Why a candidate cannot win. A closed list: a new reason bumps the table's schema."""

    COMPILE = "compile"  # did not compile
    LAUNCH = "launch"  # could not be launched, for lack of shared memory for example
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"  # ended the process that ran it, or its device was lost
    TIMED_OUT = "timed_out"
    UNWRITTEN = "unwritten"  # left part of its output unwritten
    WRONG = "wrong"  # its output is too far from the reference
    IMPLAUSIBLE = "implausible"  # its time contradicts the measured peaks or the wall clock

    @property
    def may_be_noise(self) -> bool:
        """Whether other work on the machine can be the reason, however good the candidate is."""
        return self in (Rejection.IMPLAUSIBLE, Rejection.OUT_OF_MEMORY, Rejection.TIMED_OUT)


class Flag(StrEnum):
    """What a reader of a row should know. A closed list, as `Rejection`."""

    NEAR_TIE = "near_tie"  # several candidates were within the band; the fixed order decided
    UNSTABLE = "unstable"  # the times cannot be believed; the library default was kept
    OVER_PEAK = "over_peak"  # faster than the measured peak, in a second measurement too
    FAR_BELOW_PEAK = "far_below_peak"
    OPEN = "open"  # not measured in its region or searched whole yet: the next build goes on


class Scope(StrEnum):
    """What was timed for a row. A closed list, as `Rejection`."""

    BARE = "bare"  # the GEMM alone
    FUSED = "fused"  # the GEMM with the operations that inductor may fuse into it


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The measurements behind a winner. Times are medians in microseconds; None was not measured.

    ``library_us`` is the time of the library default, None when no library kernel was a candidate.
    ``spread`` is the distance between the winner's quartiles over its median, ``band`` the share of
    the fastest time within which candidates tied, ``error`` the largest element error against the
    reference in units of the reference's root mean square. Rates and ``peak_share`` need known work
    and peaks. ``search`` says which candidates were tried.

    With the scope ``fused`` the three times, the spread, the band and the error are those of the
    GEMM with the operations fused into it; ``bare_us`` is then the winner's time for the GEMM
    alone, and the rates belong to that time. ``kernels`` and ``library_kernels`` count what the
    region launches with the winner and with the library default, in the code that inductor
    generated. ``spills`` and ``registers``, for each thread, and the seconds ``compile_s`` of its
    compile in a worker, None where it was cached, are those of the kernel that holds the
    winner's template.

    For a key with a range ``along`` has ``(size, ratio)`` at sizes of the range, ascending: the
    winner's time over the best time at that size, None where its time is missing or unstable. All
    other times were taken at the last size.

    ``bits`` is the digest of a row of the winner's output on operands with equal rows: of a build
    that is invariant, all rows of a weight have the same (`warmup.measuring.row_bits`).

    ``ranking`` has the fastest candidates as text, which `ranked` reads; empty in older rows.
    ``bare_ranking`` is the same for a pad row's library products with pad kernels of their own,
    which did not decide.
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
    ranking: str = ""
    kernels: int | None = None
    library_kernels: int | None = None
    spills: int | None = None
    registers: int | None = None
    compile_s: float | None = None
    bare_ranking: str = ""
    bits: str | None = None

    @property
    def failed(self) -> int:
        return sum(count for _, count in self.rejected)

    @property
    def is_unstable(self) -> bool:
        """Whether the times do not carry a decision, so that the row should be measured again.

        Also true where a candidate won because the time of the library default was refused, as
        tables have it that were built before the library default was kept in that case.
        """
        refused = Rejection.IMPLAUSIBLE in dict(self.rejected)
        return Flag.UNSTABLE in self.flags or (refused and self.library_us is None)


def lag_behind_library(evidence: Evidence) -> float | None:
    """Return the winner's time over the library default's at the largest size of its range.

    None without a range, and where the winner is no slower. A slower winner was chosen because the
    library default loses more at another size of the range.
    """
    if not evidence.along or evidence.library_us is None:
        return None
    ratio = evidence.time_us / evidence.library_us
    return ratio if ratio > 1 else None


EvidenceRank = tuple[bool, bool, int, float, float]

# Of a share of the peaks that is hard to believe.
SHARE_FLAGS: Final = (Flag.OVER_PEAK, Flag.FAR_BELOW_PEAK)


def evidence_rank(evidence: Evidence, near_tie: float) -> EvidenceRank:
    """Return the sort key of *evidence*: of two rows for one key the better measured is less.

    A stable row is before an unstable one, then a row with a time of the library default before one
    without, and a row whose share of the peaks can be believed before one that is flagged. Then the
    smaller spread wins, where spreads up to *near_tie* count as equal, and last the shorter time.
    """
    return (
        evidence.is_unstable,
        evidence.library_us is None,
        len(set(SHARE_FLAGS).intersection(evidence.flags)),
        max(evidence.spread or 0.0, near_tie),
        evidence.time_us,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """The winner for a key, and the evidence for it.

    ``untrusted`` is why the winner must not be served although it was measured: a bucket's output
    was wrong with it. None for a row that is served.
    """

    winner: Winner
    evidence: Evidence
    untrusted: str | None = None


MAX_RANKED: Final = 10  # entries of `Evidence.ranking`


def ranked(ranking: str) -> tuple[tuple[float, str], ...]:
    """Return the time in microseconds and the name of each candidate in a *ranking* of evidence."""
    entries = (entry.partition(" ") for entry in ranking.split("; ") if entry)
    return tuple((float(time_us), name) for time_us, _, name in entries)
