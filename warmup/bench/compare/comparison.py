"""`Comparison`: the measurements of a model that was started and timed in several variants.

Times are rounded to the printed digits before ratios and rates are computed from them, so that a
reader can check every ratio and rate against the printed times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmup.buckets.bucket import Bucket
from warmup.core.call_cost import CallCost
from warmup.core.errors import SettingsError
from warmup.core.method import L2, Launch
from warmup.core.phases import PhaseSeconds, added
from warmup.core.roofline import Peaks
from warmup.core.runtime import Runtime
from warmup.core.samples import Samples

FEWEST_ROUNDS: Final = 6  # the fewest samples with a 95 % interval of the median
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
        """True when the variant serves from a table."""
        return self in (How.TABLE, How.TABLE_PADDED)


REFERENCE_VARIANT: Final = How.EAGER.value  # its outputs are the reference of the others
BASELINE: Final = How.DEFAULT.value  # speed-ups are relative to this variant


@dataclass(frozen=True, slots=True)
class Variant:
    """A model and how it is compiled. ``model`` has the text form of ``--model``."""

    name: str
    how: How
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOutput:
    """The first call of a bucket, until its outputs are computed.

    ``process_seconds`` run from the start of the process to the end of the call, ``phases`` say
    what the seconds since the output before were spent on. ``benchmarks``, ``hits`` and ``misses``
    are counts of this call; hits and misses are None without a table. ``peak_bytes`` is the peak
    memory of the process so far: allocated memory on a GPU, resident memory on CPU.
    """

    process_seconds: float
    phases: PhaseSeconds
    benchmarks: int
    hits: int | None
    misses: int | None
    peak_bytes: int

    @property
    def call_seconds(self) -> float:
        """Seconds of the call: the sum of its phases."""
        return sum(self.phases.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of a variant: the first outputs of all buckets, in order.

    ``phases_before`` are those before the first call: importing torch and inductor, loading the
    model and its inputs, and installing a table. ``sites`` counts benchmarks by the site in
    inductor that asked for them.
    """

    phases_before: PhaseSeconds
    outputs: tuple[FirstOutput, ...]
    sites: Mapping[str, int]
    miss_reasons: Mapping[str, int]

    @property
    def phases(self) -> PhaseSeconds:
        """Seconds of the whole start by phase."""
        return added((self.phases_before, *(output.phases for output in self.outputs)))

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
        """Benchmarks that inductor ran in all first calls."""
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
        """The peak memory until the last first output."""
        return self.outputs[-1].peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTime:
    """The times of a variant in a bucket, one sample a round, and its error against eager.

    ``error`` is the largest relative L2 error over all outputs, ``limit`` the largest allowed.
    ``host`` are the host's times to enqueue a call, None where nobody took them.
    """

    device: Samples
    wall: Samples
    error: float
    limit: float
    host: Samples | None = None

    @property
    def agrees(self) -> bool:
        """True when the outputs are within the tolerance of eager's."""
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
        """The median host time of a call until its outputs are computed, as printed."""
        return rounded(self.wall.median)

    @property
    def cost(self) -> CallCost | None:
        """What a call costs the host and the device, as printed; None without the host's times."""
        if self.host is None:
            return None
        return CallCost(host_us=rounded(self.host.median), device_us=self.median_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The start and the times of a variant, or why it failed.

    ``start`` is None when the variant did not compute the first outputs of all buckets, ``cells``
    is empty when it was not timed to the end; ``failure`` is the reason. ``log`` is the name of the
    log file of its process, in the folder of the report.
    """

    variant: Variant
    start: Start | None
    cells: tuple[BucketTime, ...]
    failure: str | None
    log: str | None


@dataclass(frozen=True, slots=True)
class Demand:
    """The least work of a call: operations and bytes moved; None where torch cannot count them.

    ``dtypes`` are those of the first operands of what was counted as operations.
    """

    flops: int | None
    moved_bytes: int | None
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ratio:
    """A speed-up over the baseline, with its 95 % interval, as printed."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The settings and the machine of a comparison, enough to repeat it. ``created`` is in UTC."""

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
    """The origin and the results of a comparison. ``demands`` has an entry for each bucket."""

    origin: Origin
    buckets: tuple[Bucket, ...]
    results: tuple[Result, ...]
    demands: tuple[Demand, ...]
    peaks: Peaks | None
    remarks: tuple[str, ...]

    @property
    def baseline(self) -> Result | None:
        """The result of the baseline; None when it failed or disagrees with eager."""
        named = (result for result in self.results if result.variant.name == BASELINE)
        baseline = next(named, None)
        return baseline if baseline is not None and is_sound(baseline) else None

    @property
    def failed(self) -> tuple[str, ...]:
        """The variants served from a table that failed or disagree with eager."""
        served = [result for result in self.results if result.variant.how.is_served]
        return tuple(result.variant.name for result in served if not is_sound(result))


def parse_variants(
    names: str | None, also: Sequence[str], model: str, *, pads: bool = False
) -> tuple[Variant, ...]:
    """Return the variants of *model* named in *names*, and those of other models in *also*.

    Without *names* all variants are returned; the variant with padded weights only if the table
    *pads* weights. Eager and default are always returned, first. An item of
    *also* has the form ``NAME=MODEL`` or ``NAME=MODEL+HOW``, such as
    ``padded=examples/mlp.py:Padded+table``; without HOW it is default.

    Raises:
        SettingsError: an item has another form, or a name is given twice.
    """
    if names is None:
        names = ",".join(how for how in How if pads or how is not How.TABLE_PADDED)
    variants: dict[str, Variant] = {}
    for word in (part.strip() for part in names.split(",")):
        if word not in set(How):
            raise SettingsError(
                f"--variants: {word!r} is not a variant", f"use any of {','.join(How)}"
            )
        _add(variants, Variant(word, How(word), model), "--variants")
    required = {name: Variant(name, How(name), model) for name in (REFERENCE_VARIANT, BASELINE)}
    variants = required | variants
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
        _add(variants, Variant(name, How(how), target), "--also")
    return tuple(variants.values())


def _add(variants: dict[str, Variant], variant: Variant, source: str) -> None:
    if variant.name in variants:
        raise SettingsError(f"{source}: {variant.name!r} is given twice", "name each variant once")
    variants[variant.name] = variant


def is_sound(result: Result) -> bool:
    """Return whether *result* was timed to the end and agrees with eager in every bucket."""
    return bool(result.cells) and all(cell.agrees for cell in result.cells)


def decimals_of(value: float) -> int:
    """Return the printed decimals of *value*: four significant digits, none from 1000 on."""
    return max(_TIME_DIGITS - 1 - math.floor(math.log10(value)), 0) if value > 0 else 0


def rounded(value: float) -> float:
    """Return *value* with the digits that are printed."""
    return round(value, decimals_of(value))


def _sum_known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
