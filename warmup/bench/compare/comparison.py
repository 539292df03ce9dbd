"""How one model was started and served in several ways: what was seen.

Times are rounded to the digits that reports print before anything is computed from them, so that
every ratio and rate can be checked against the numbers beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmup.buckets.bucket import Bucket
from warmup.core.errors import SettingsError
from warmup.core.method import L2, Launch
from warmup.core.roofline import Peaks
from warmup.core.runtime import Runtime
from warmup.core.samples import Samples

FEWEST_ROUNDS: Final = 6  # an interval of 95 % takes so many
_TIME_DIGITS: Final = 4
_VARIANT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")


class How(StrEnum):
    """How a variant is compiled."""

    EAGER = "eager"
    DEFAULT = "default"
    MAX_AUTOTUNE = "max-autotune"
    TABLE = "table"
    TABLE_PADDED = "table-padded"

    @property
    def is_served(self) -> bool:
        """Whether a table answers, for the weights as they are or for those that it pads."""
        return self in (How.TABLE, How.TABLE_PADDED)


REFERENCE_VARIANT: Final = How.EAGER.value  # the variant whose outputs the others must have
BASELINE: Final = How.DEFAULT.value  # the variant that speed-ups are over


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to start and serve a model. ``model`` is spelled as for ``--model``."""

    name: str
    how: How
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOutput:
    """The first output of one bucket.

    ``process_seconds`` count from the start of the process, ``call_seconds`` are those of this call
    alone. ``benchmarks``, ``hits`` and ``misses`` happened in it; the latter two are None without a
    table. ``peak_bytes`` is the largest memory so far: allocated on a GPU, resident on CPU.
    """

    process_seconds: float
    call_seconds: float
    benchmarks: int
    hits: int | None
    misses: int | None
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first outputs of all buckets, in order. ``sites`` counts benchmarks by who asked.

    Before the first call come ``import_seconds``, from the start of the process until it takes
    requests, ``load_seconds`` for the model and its inputs, and ``install_seconds`` for importing
    inductor and installing a table. ``measure_seconds`` are those of all benchmarks.
    """

    import_seconds: float
    load_seconds: float
    install_seconds: float
    measure_seconds: float
    outputs: tuple[FirstOutput, ...]
    sites: Mapping[str, int]
    miss_reasons: Mapping[str, int]

    @property
    def process_seconds(self) -> float:
        """Seconds from the start of the process to the first output of the last bucket."""
        return self.outputs[-1].process_seconds

    @property
    def call_seconds(self) -> float:
        """Seconds spent in the first calls, without imports, weights and installing a table."""
        return sum(output.call_seconds for output in self.outputs)

    @property
    def benchmarks(self) -> int:
        """How often inductor measured something until the last first output."""
        return sum(output.benchmarks for output in self.outputs)

    @property
    def hits(self) -> int | None:
        """Decisions that rows answered; None without a table."""
        return _sum_known([output.hits for output in self.outputs])

    @property
    def misses(self) -> int | None:
        """Decisions that no row answered; None without a table."""
        return _sum_known([output.misses for output in self.outputs])

    @property
    def peak_bytes(self) -> int:
        """The largest memory until the last first output."""
        return self.outputs[-1].peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTime:
    """One variant in one bucket: its times, one a round, and its distance from eager.

    ``error`` is the largest relative L2 error over all outputs and ``limit`` what it may be.
    """

    device: Samples
    wall: Samples
    error: float
    limit: float

    @property
    def agrees(self) -> bool:
        """True when the output is within the tolerance of eager's."""
        return self.error <= self.limit

    @property
    def median_us(self) -> float:
        """The median device time of a call, as printed."""
        return rounded(self.device.median)

    @property
    def interval_us(self) -> tuple[float, float]:
        """The 95 % interval of the median device time."""
        low, high = self.device.interval
        return rounded(low), rounded(high)

    @property
    def wall_us(self) -> float:
        """The median host time of one call that is waited for, as printed."""
        return rounded(self.wall.median)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one variant.

    ``start`` is None when it made no first output of every bucket, ``cells`` is empty when it could
    not be timed to the end; ``failure`` says why. ``log`` is the name of the file with its last
    words, beside the report.
    """

    variant: Variant
    start: Start | None
    cells: tuple[BucketTime, ...]
    failure: str | None
    log: str | None


@dataclass(frozen=True, slots=True)
class Demand:
    """What one call asks of the device at least; ``flops`` is None where torch cannot count it."""

    flops: int | None
    moved_bytes: int | None


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster than the baseline, with the 95 % interval, as printed."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where and how a comparison ran: what repeats it. ``created`` is in UTC."""

    model: str
    inputs: tuple[str, ...]
    device: str
    dtype: str
    launch: Launch
    l2: L2
    rounds: int
    seed: int
    created: str
    warmup: str
    runtime: Runtime
    table: str | None
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that a comparison found. ``demands`` has one for each bucket."""

    origin: Origin
    buckets: tuple[Bucket, ...]
    results: tuple[Result, ...]
    demands: tuple[Demand, ...]
    peaks: Peaks | None
    remarks: tuple[str, ...]

    @property
    def baseline(self) -> Result | None:
        """The baseline, None when it failed or disagrees with eager."""
        found = next((one for one in self.results if one.variant.name == BASELINE), None)
        return found if found is not None and is_sound(found) else None

    @property
    def failed(self) -> tuple[str, ...]:
        """The variants served from a table that failed or disagree with eager."""
        of_table = [one for one in self.results if one.variant.how.is_served]
        return tuple(one.variant.name for one in of_table if not is_sound(one))


def parse_variants(
    names: str | None, also: Sequence[str], model: str, *, pads: bool = False
) -> tuple[Variant, ...]:
    """Return the variants of *model* named in *names*, and the others in *also*.

    Without names all are, the one with padded weights only if the table *pads* any. Eager and
    default are always among them, first. One of *also* is spelled ``NAME=MODEL`` or
    ``NAME=MODEL+HOW``, such as ``padded=examples/mlp.py:Padded+table``; HOW is default without.

    Raises:
        SettingsError: one is spelled otherwise, or a name is given twice.
    """
    if names is None:
        names = ",".join(how for how in How if pads or how is not How.TABLE_PADDED)
    found: dict[str, Variant] = {}
    for word in (part.strip() for part in names.split(",")):
        if word not in set(How):
            raise SettingsError(
                f"--variants: {word!r} is not a variant", f"use any of {','.join(How)}"
            )
        _add(found, Variant(word, How(word), model), "--variants")
    own = {name: Variant(name, How(name), model) for name in (REFERENCE_VARIANT, BASELINE)}
    found = own | found
    for text in also:
        name, equals, rest = text.partition("=")
        target, plus, how = rest.rpartition("+")
        if not plus:
            target, how = rest, How.DEFAULT
        if not equals or not target or not _VARIANT_NAME.fullmatch(name) or how not in set(How):
            raise SettingsError(
                f"--also {text!r} is not NAME=MODEL or NAME=MODEL+HOW",
                "write --also padded=model.py:Padded+table; a name has a-z, 0-9, dots and dashes, "
                f"and HOW is one of {', '.join(How)}",
            )
        _add(found, Variant(name, How(how), target), "--also")
    return tuple(found.values())


def _add(found: dict[str, Variant], variant: Variant, source: str) -> None:
    if variant.name in found:
        raise SettingsError(f"{source}: {variant.name!r} is given twice", "name each variant once")
    found[variant.name] = variant


def is_sound(result: Result) -> bool:
    """Return whether *result* was timed to the end and agrees with eager in every bucket."""
    return bool(result.cells) and all(cell.agrees for cell in result.cells)


def decimals_of(value: float) -> int:
    """Return how many decimals of *value* are printed: four digits, and all before the point."""
    return max(_TIME_DIGITS - 1 - math.floor(math.log10(value)), 0) if value > 0 else 0


def rounded(value: float) -> float:
    """Return *value* with the digits that are printed."""
    return round(value, decimals_of(value))


def _sum_known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
