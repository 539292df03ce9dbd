"""`Comparison`: what `warmup compare` measured, its verdicts in words, its document and its chart.

A speed-up is the printed median of default mode over that of the variant. Times are rounded to the
printed digits first, so that a reader can check every ratio. The interval comes from the ratios of
single rounds. Imports no torch; `warmup.bench.race` measures.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, TypedDict

from warmup.bench.cells import Bar, Chart
from warmup.core.buckets import Bucket
from warmup.core.device import CallCost, Runtime
from warmup.core.errors import SettingsError
from warmup.core.rows import L2, Launch
from warmup.core.trial import (
    Samples,
    busy_sentence,
    first_busy_sentence,
    geomean,
    interval_of,
    ratios_by_round,
)

FEWEST_ROUNDS: Final = 6  # the fewest samples with a 95 % interval of the median
_SCHEMA: Final = 2
_TIME_DIGITS: Final = 4
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")


class How(StrEnum):
    """How a variant is compiled."""

    EAGER = "eager"
    DEFAULT = "default"
    MAX_AUTOTUNE = "max-autotune"
    TABLE = "table"
    TABLE_PADDED = "table-padded"

    @property
    def is_served(self) -> bool:
        return self in (How.TABLE, How.TABLE_PADDED)


REFERENCE: Final = How.EAGER.value  # its outputs are the reference of the others
BASELINE: Final = How.DEFAULT.value  # speed-ups are relative to this variant


@dataclass(frozen=True, slots=True)
class Variant:
    """A model and how it is compiled. ``model`` has the text form of ``--model``."""

    name: str
    how: How
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """A model, its buckets and variants, and how they are timed, as text of the command line.

    Without ``variants`` all are compared; the variant with padded weights only if the table pads
    weights on this device. Every variant starts once for all ``launches``. ``out`` is the folder
    for the logs. ``timeout_s`` is the longest wait for an answer, at the start for each bucket.
    """

    model: str
    seqlens: str | Sequence[int] | None = None
    dims: str | Sequence[str] | None = None
    inputs: Sequence[str] = ()
    device: str = "auto"
    dtype: str | None = None
    table: str | os.PathLike[str] | None = None
    variants: str | None = None
    rounds: int = 30
    launches: Sequence[str] = (Launch.EAGER,)
    l2: str = L2.WARM
    out: str | os.PathLike[str] | None = None
    timeout_s: float = 1800.0
    freezing: bool | None = None


class FirstOutput(TypedDict):
    """The first call of a bucket, until its outputs are computed, as JSON values.

    ``process_seconds`` run from the start of the process, ``call_seconds`` are those of the call,
    by ``phases``. Counts are of this call, hits and misses None without a table. ``peak_bytes`` is
    the peak memory of the process so far: allocated on a GPU, resident on a CPU.
    """

    process_seconds: float
    call_seconds: float
    phases: Mapping[str, float]
    benchmarks: int
    hits: int | None
    misses: int | None
    peak_bytes: int


class Start(FirstOutput):
    """The start of a variant: ``outputs`` are the first outputs of all buckets, in order.

    Counts and ``call_seconds`` are their sums. ``phases_before`` are those before the first call.
    ``sites`` counts benchmarks by the site in inductor that ran them.
    """

    phases_before: Mapping[str, float]
    outputs: Sequence[FirstOutput]
    sites: Mapping[str, int]
    miss_reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTime:
    """The times of a variant in a bucket, one sample a round, and its error against eager.

    ``host`` are the host's times to enqueue a call, ``wall`` those until its outputs are computed.
    ``error`` is the largest relative L2 error of all outputs.
    """

    device: Samples
    wall: Samples
    host: Samples
    error: float
    limit: float

    @property
    def agrees(self) -> bool:
        return self.error <= self.limit

    @property
    def median_us(self) -> float:
        return rounded(self.device.median)

    @property
    def interval_us(self) -> tuple[float, float]:
        low, high = self.device.interval
        return rounded(low), rounded(high)

    @property
    def wall_us(self) -> float:
        return rounded(self.wall.median)

    @property
    def cost(self) -> CallCost:
        return CallCost(host_us=rounded(self.host.median), device_us=self.median_us)


@dataclass(frozen=True, slots=True)
class Result:
    """The start and the times of a variant, or why it failed.

    ``start`` is None without the first outputs of all buckets, ``cells`` is empty when the variant
    was not timed to the end. ``log`` is the name of the log file of its process.
    """

    variant: Variant
    start: Start | None
    cells: tuple[BucketTime, ...]
    failure: str | None
    log: str | None

    @property
    def is_sound(self) -> bool:
        return bool(self.cells) and all(cell.agrees for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A speed-up over the baseline, with its 95 % interval, as printed."""

    value: float
    low: float
    high: float

    @property
    def brief(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f}-{self.high:.2f})"

    def __str__(self) -> str:
        between = f"({self.low:.2f} to {self.high:.2f})"
        if self.low <= 1 <= self.high:
            return f"no measurable gain: {self.value:.2f}x {between}"
        if self.value > 1:
            return f"{self.value:.2f}x faster {between}"
        return f"slower, at {self.value:.2f}x the speed {between}"


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """The origin and the results of a comparison; speed-ups are those over default mode."""

    origin: Origin
    buckets: tuple[Bucket, ...]
    results: tuple[Result, ...]
    remarks: tuple[str, ...]

    @property
    def baseline(self) -> Result | None:
        """The result of the baseline; None when it failed or disagrees with eager."""
        sound = (each for each in self.results if each.is_sound)
        return next((each for each in sound if each.variant.name == BASELINE), None)

    @property
    def failed(self) -> tuple[str, ...]:
        served = (result for result in self.results if result.variant.how.is_served)
        return tuple(result.variant.name for result in served if not result.is_sound)

    @property
    def too_busy(self) -> str | None:
        base = self.baseline
        cells = zip(self.buckets, base.cells, strict=True) if base is not None else ()
        return first_busy_sentence((f"{BASELINE} in {bucket}", one.device) for bucket, one in cells)

    def speedups(self, result: Result) -> tuple[Ratio | None, ...]:
        """Return the speed-up of *result* by bucket, None where the baseline scatters too far.

        Empty for the baseline itself, and for a variant that failed or disagrees with eager.
        """
        return tuple(
            None
            if busy_sentence(BASELINE, base.device)
            else _ratio(base.median_us / cell.median_us, ratios_by_round(base.device, cell.device))
            for base, cell in self._pairs(result)
        )

    def overall(self, result: Result) -> Ratio | None:
        """Return the geometric mean of the speed-ups of all buckets; None unless all have one."""
        pairs = self._pairs(result)
        if not pairs or self.too_busy is not None:
            return None
        rounds = (ratios_by_round(base.device, cell.device) for base, cell in pairs)
        mean = geomean([base.median_us / cell.median_us for base, cell in pairs])
        return _ratio(mean, [geomean(ratios) for ratios in zip(*rounds, strict=True)])

    def verdict(self, result: Result) -> str:
        if result.failure is not None:
            return f"failed: {result.failure}"
        for bucket, cell in zip(self.buckets, result.cells, strict=True):
            if not cell.agrees:
                return (
                    f"out of tolerance: its output is {cell.error:.1e} away from eager's in "
                    f"{bucket} (at most {cell.limit:.0e}); no speed-up is claimed"
                )
        if result.variant.name == BASELINE:
            return "the baseline"
        speedup = self.overall(result)
        if speedup is not None:
            return str(speedup)
        return self.too_busy or f"no speed-up: {BASELINE} failed"

    def host_limits(self) -> tuple[tuple[Bucket, dict[str, CallCost]], ...]:
        """Return the buckets in which the host limits a compiled variant, launched one by one."""
        if self.origin.runtime.device.type == "cpu":
            return ()
        sound = {each.variant.name: each.cells for each in self.results if each.is_sound}
        costs = [
            {name: cells[i].cost for name, cells in sound.items()} for i in range(len(self.buckets))
        ]
        return tuple(
            (bucket, own)
            for bucket, own in zip(self.buckets, costs, strict=True)
            if any(cost.is_host_limited for name, cost in own.items() if name != REFERENCE)
        )

    def _pairs(self, result: Result) -> list[tuple[BucketTime, BucketTime]]:
        base = self.baseline
        if base is None or base is result or not result.is_sound:
            return []
        return list(zip(base.cells, result.cells, strict=True))


class CompareProgress:
    """What a comparison tells while it runs: nothing, unless methods are overridden."""

    def show(self, step: str, *, done: float | None = None, total: int | None = None) -> None:
        """Show the *step* under way, and how many rounds are done."""

    def print_above(self, line: str) -> None:
        """Print *line*: a variant is ready, or has failed."""


def parse_variants(text: str | None, model: str, *, pads: bool = False) -> tuple[Variant, ...]:
    """Return the variants in the comma-separated *text*; eager and default always, and first.

    An item is a `How`, of *model*, or another model: ``NAME=MODEL`` or ``NAME=MODEL+HOW``. Without
    *text* all variants of *model* are returned, padded weights only if the table *pads* weights.
    """
    if text is None:
        text = ",".join(how for how in How if pads or how is not How.TABLE_PADDED)
    named: dict[str, Variant] = {}
    for item in text.split(","):
        variant = _variant(item.strip(), model)
        if variant.name in named:
            raise SettingsError(
                f"--variants: {variant.name!r} is given twice", "name each variant once"
            )
        named[variant.name] = variant
    required = {name: Variant(name, How(name), model) for name in (REFERENCE, BASELINE)}
    return tuple((required | named).values())


def _variant(item: str, model: str) -> Variant:
    hows = set(How)
    if item in hows:
        return Variant(item, How(item), model)
    name, _, rest = item.partition("=")
    target, plus, how = rest.rpartition("+")
    if not plus:
        target, how = rest, How.DEFAULT
    if not target or not _NAME.fullmatch(name) or name in hows or how not in hows:
        raise SettingsError(
            f"--variants: {item!r} is not a variant",
            f"use any of {','.join(How)}, or another model: padded=model.py:Padded+table; its "
            "name has a-z, 0-9, dots and dashes, and no comma is in its path",
        )
    return Variant(name, How(how), target)


def decimals_of(value: float) -> int:
    """Return the printed decimals of *value*: four significant digits, none from 1000 on."""
    return max(_TIME_DIGITS - 1 - math.floor(math.log10(value)), 0) if value > 0 else 0


def rounded(value: float) -> float:
    """Return *value* with the digits that are printed."""
    return round(value, decimals_of(value))


def document_of_comparison(report: Comparison) -> dict[str, Any]:
    """Return *report* as JSON values; docs/how-to/compare-a-model.md has each."""
    return {
        "schema": _SCHEMA,
        "origin": asdict(report.origin),
        "remarks": list(report.remarks),
        "variants": [
            {
                **asdict(result.variant),
                "failure": result.failure,
                "log": result.log,
                "verdict": report.verdict(result),
                "speedup": (overall := report.overall(result)) and asdict(overall),
                "start": result.start,
            }
            for result in report.results
        ],
        "buckets": [
            {
                "bucket": dict(bucket.sizes),
                "variants": [
                    _document_of_cell(report, result, index)
                    for result in report.results
                    if result.cells
                ],
            }
            for index, bucket in enumerate(report.buckets)
        ],
    }


def chart_of_comparison(report: Comparison) -> Chart:
    """Return the chart of *report*: the speed of each timed variant over default mode, by bucket.

    Over eager where default mode was not timed; the intervals are those of the variant.
    """
    origin, here = report.origin, report.origin.runtime
    timed = {result.variant.name: result.cells for result in report.results if result.cells}
    base = next((name for name in (BASELINE, REFERENCE, *timed) if name in timed), "")
    return Chart(
        title=f"Speed of {origin.model.rpartition(':')[2]} over {base}",
        subtitle=f"Higher is better. Device time of one call: launch {origin.launch}, "
        f"{origin.l2} L2, medians of {origin.rounds} rounds, 95 % intervals.",
        x_label="bucket",
        y_label=f"times as fast as {base}",
        groups=tuple(map(str, report.buckets)),
        series={name: tuple(map(_speed, timed[base], cells)) for name, cells in timed.items()},
        reference=(base, 1.0),
        note=f"{here.device.name}, torch {here.torch}, triton {here.triton or 'none'}, "
        f"warmup {origin.warmup}, {origin.created[:10]}",
    )


def _document_of_cell(report: Comparison, result: Result, index: int) -> dict[str, Any]:
    cell, speedups = result.cells[index], report.speedups(result)
    ratio = speedups[index] if speedups else None
    return {
        "name": result.variant.name,
        "median_us": cell.median_us,
        "interval_us": list(cell.interval_us),
        "spread": round(cell.device.spread, 4),
        "wall_us": cell.wall_us,
        "host_us": cell.cost.host_us,
        "speedup": asdict(ratio) if ratio is not None else None,
        "error": cell.error,
        "limit": cell.limit,
        "agrees": cell.agrees,
        "device_times_us": list(cell.device.times_us),
        "wall_times_us": list(cell.wall.times_us),
        "host_times_us": list(cell.host.times_us),
    }


def _speed(base: BucketTime, cell: BucketTime) -> Bar | None:
    base_us, (low, high) = base.median_us, cell.interval_us
    if not base_us or not cell.median_us:
        return None
    return base_us / high, base_us / cell.median_us, base_us / low


def _ratio(value: float, by_round: Sequence[float]) -> Ratio:
    low, high = interval_of(by_round)
    # The ratio of the medians can lie outside the interval of the ratios, which is widened to it.
    value = round(value, 2)
    return Ratio(value, min(round(low, 2), value), max(round(high, 2), value))
