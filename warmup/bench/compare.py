"""`race`: start a model in several variants, time each in turn, and return a `Comparison`.

Each variant has its own process with empty caches, and only one process works at a time. First the
variants compute their first outputs; then a round times every bucket once in every variant, and
each round begins with another variant. A process that fails, dies or hangs is ended. `Remote` and
`serve` are the two sides of such a process; neither side's import loads torch.

A speed-up is the printed median of default mode over that of the variant. Times are rounded to the
printed digits first, so that a reader can check every ratio. The interval comes from the ratios of
single rounds.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self, TypedDict

from warmup.bench.cells import Bar, Chart, reason_of
from warmup.core.buckets import Bucket, parse_buckets, parse_inputs
from warmup.core.device import CallCost, Runtime, compare_runtimes
from warmup.core.errors import MissReason, ModelError, SettingsError
from warmup.core.files import make_folder, temporary_folder
from warmup.core.processes import Child, ChildError, answering, in_turn
from warmup.core.rows import L2, SEED, Launch
from warmup.core.text import __version__
from warmup.core.trial import (
    Samples,
    busy_sentence,
    first_busy_sentence,
    geomean,
    interval_of,
    ratios_by_round,
)
from warmup.table.codec import digest_of
from warmup.table.schema import MOST_DEFAULT, MOST_TIMES
from warmup.table.store import FoundTable, discover, find, write

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


class Start(TypedDict):
    """The start of a variant, until the first outputs of all buckets are computed, as JSON values.

    ``process_seconds`` run from the start of the process, ``call_seconds`` are those of the first
    calls; ``phases`` have all. Hits and misses are None without a table. ``peak_bytes`` is the peak
    memory of the process: allocated on a GPU, resident on a CPU.
    """

    process_seconds: float
    call_seconds: float
    phases: Mapping[str, float]
    benchmarks: int
    hits: int | None
    misses: int | None
    miss_reasons: Mapping[str, int]
    peak_bytes: int


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
        """Return speed-ups by bucket, None where the baseline scatters; none for what failed."""
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

    def host_limits(self) -> Iterator[tuple[Bucket, dict[str, CallCost]]]:
        """Yield the buckets in which the host limits a compiled variant, launched one by one."""
        if self.origin.runtime.device.type == "cpu":
            return
        sound = {each.variant.name: each.cells for each in self.results if each.is_sound}
        for index, bucket in enumerate(self.buckets):
            costs = {name: cells[index].cost for name, cells in sound.items()}
            if any(cost.is_host_limited for name, cost in costs.items() if name != REFERENCE):
                yield bucket, costs

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
    """Return the variants in the comma-separated *text*; eager and default always, and first."""
    # An item is a `How`, of *model*, or another model: ``NAME=MODEL`` or ``NAME=MODEL+HOW``.
    # Without *text* all variants of *model* are returned, padded weights only if the table *pads*
    # weights.
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
    """Return the chart of *report*: the speed of variants over default mode, else over eager."""
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
    plain = ("median_us", "wall_us", "error", "limit", "agrees")
    return {
        **{name: getattr(cell, name) for name in plain},
        **{f"{name}_times_us": list(getattr(cell, name).times_us) for name in _TIMES},
        "name": result.variant.name,
        "interval_us": list(cell.interval_us),
        "spread": round(cell.device.spread, 4),
        "host_us": cell.cost.host_us,
        "speedup": asdict(ratio) if ratio is not None else None,
    }


def _speed(base: BucketTime, cell: BucketTime) -> Bar:
    base_us, (low, high) = base.median_us, cell.interval_us
    return base_us / high, base_us / cell.median_us, base_us / low


def _ratio(value: float, by_round: Sequence[float]) -> Ratio:
    low, high = interval_of(by_round)
    # The ratio of the medians can lie outside the interval of the ratios, which is widened to it.
    value = round(value, 2)
    return Ratio(value, min(round(low, 2), value), max(round(high, 2), value))


# The race: the processes of the variants, and what each is asked.

_CHILD: Final = ("-m", "warmup.bench.variant_process")
_TIMES: Final = ("device", "wall", "host")

Answer = Mapping[str, Any]


def race(request: CompareRequest, progress: CompareProgress | None = None) -> Sequence[Comparison]:
    """Return by launch how the model of *request* starts and runs, or why a variant failed."""
    buckets = parse_buckets(request.seqlens, request.dims)
    parse_inputs(request.inputs)
    if request.rounds < FEWEST_ROUNDS:
        raise SettingsError(
            f"--rounds {request.rounds} is too few for an interval of 95 %",
            f"give {FEWEST_ROUNDS} or more",
        )
    variants, table, runtime, device = _entries(request)
    remarks: list[str] = []
    if table is not None:
        differences = compare_runtimes(table.table.provenance.runtime, runtime)
        ends = {each: ": every row is a miss" if each.is_hard else "" for each in differences}
        remarks = [*table.remarks, *(f"{each}{end}" for each, end in ends.items())]
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(temporary_folder("warmup-"))
        logs = scratch if request.out is None else Path(request.out)
        make_folder(logs, "--out")
        case: dict[str, Any] = {
            "table": None,
            "buckets": [bucket.sizes for bucket in buckets],
            "inputs": tuple(request.inputs),
            "device": device,
            "dtype": request.dtype,
            "freezing": request.freezing,
        }
        if table is not None:
            case["table"] = str(scratch / "table.json")
            write(scratch / "table.json", table.table)
        running = Race(scratch, logs, case, request.timeout_s, progress or CompareProgress(), stack)
        for variant in variants:
            running.start(variant)
        running.allow_rounding()
        reports = []
        for launch in map(Launch, request.launches):
            running.prepare(launch, request.l2)
            running.run(request.rounds, len(buckets))
            origin = Origin(
                model=request.model,
                inputs=tuple(request.inputs),
                device=device,
                dtype=running.dtype,
                launch=launch,
                l2=L2(request.l2),
                rounds=request.rounds,
                seed=SEED,
                created=dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                warmup=__version__,
                runtime=runtime,
                table=None if table is None else table.origin,
                digest=None if table is None else digest_of(table.table),
            )
            own = tuple(each.result(has_log=request.out is not None) for each in running.entrants)
            said = dict.fromkeys((*remarks, *running.remarks, *running.idle()))
            reports.append(Comparison(origin, buckets, own, tuple(said)))
    return tuple(reports)


def _entries(request: CompareRequest) -> tuple[Sequence[Variant], FoundTable | None, Runtime, str]:
    from warmup.inductor import connect
    from warmup.inductor.machine import check_compiler, resolve_device
    from warmup.models.loading import parse_cast
    from warmup.models.padding import paddings

    variants = parse_variants(request.variants, request.model)
    needs_table = any(variant.how.is_served for variant in variants)
    named = request.table if request.table is not None else os.environ.get("WARMUP_TABLE")
    table = find(named, {}) if needs_table and named else None
    inductor = connect()
    device = resolve_device(request.device)
    check_compiler(device)
    parse_cast(request.dtype)
    if Launch.CUDAGRAPH in request.launches and device.type == "cpu":
        raise SettingsError("--launch cudagraph needs a GPU", "use --launch eager on the CPU")
    runtime = inductor.runtime(str(device))
    if needs_table and table is None:
        table = discover(runtime)
    if table is not None:
        mismatches = compare_runtimes(table.table.provenance.runtime, runtime)
        pads = bool(paddings(table.table, mismatches))
        variants = parse_variants(request.variants, request.model, pads=pads)
        padded = [variant.name for variant in variants if variant.how is How.TABLE_PADDED]
        if padded and not pads:
            raise SettingsError(
                f"{', '.join(padded)}: {table.origin} pads no weights on this device",
                "build it with --pad-weights, or leave that variant out",
            )
    return variants, table, runtime, str(device)


class Remote(Child):
    """A child that runs ``python PROGRAM... FD``, calls `serve`, and prints into the file *log*."""

    def __init__(self, program: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        with log.open("w+b") as file:
            super().__init__([sys.executable, *program], environment, file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Answer:
        """Return the child's answer to *request*; after a ChildError nothing more is asked."""
        self.send(request)
        answer = self.receive(timeout_s)
        if "failed" in answer:
            raise ChildError(str(answer["failed"]))
        return answer


@dataclass(kw_only=True)
class Entrant:
    """A remote that is measured in turn with others; ``on_failure`` gets its ``failure``, once."""

    remote: Remote
    timeout_s: float
    on_failure: Callable[[str], None]
    failure: str | None = None

    def ask(self, what: str, *, waits: int = 1, **arguments: Any) -> Answer | None:
        """Return the answer to the request *what*; None if the process fails or failed before."""
        if self.failure is not None:
            return None
        try:
            return self.remote.ask({"do": what, **arguments}, waits * self.timeout_s)
        except ChildError as error:
            self.fail(str(error))
            return None

    def fail(self, reason: str) -> None:
        self.failure = reason
        self.remote.kill()
        self.on_failure(reason)


@dataclass(kw_only=True)
class _VariantEntrant(Entrant):
    variant: Variant
    log: Path
    started: Start | None = None
    errors: Sequence[Sequence[float]] = ()
    times: Sequence[list[Answer]] = ()

    def result(self, *, has_log: bool) -> Result:
        pairs = () if self.failure is not None else zip(self.times, self.errors, strict=True)
        cells = []
        for rounds, (error, limit) in pairs:
            own = {name: Samples(tuple(each[f"{name}_us"] for each in rounds)) for name in _TIMES}
            cells.append(BucketTime(**own, error=error, limit=limit))
        log = self.log.name if has_log else None
        return Result(self.variant, self.started, tuple(cells), self.failure, log)


@dataclass
class Race:
    """A comparison in progress; ``dtype`` of the weights is known when eager has started."""

    scratch: Path
    logs: Path
    case: Mapping[str, Any]
    timeout_s: float
    progress: CompareProgress
    processes: contextlib.ExitStack
    entrants: list[_VariantEntrant] = field(default_factory=list)
    dtype: str = ""
    remarks: list[str] = field(default_factory=list)
    _digests: dict[str, str] = field(default_factory=dict)

    def start(self, variant: Variant) -> None:
        self.progress.show(f"{variant.name}: first outputs")
        log = self.logs / f"compare-{variant.name}.log"
        spawned, progress = time.monotonic(), self.progress
        caches = self.scratch / variant.name
        names = ("TORCHINDUCTOR", "TRITON")
        environment = {f"{name}_CACHE_DIR": str(caches / name.lower()) for name in names}
        entrant = _VariantEntrant(
            remote=self.processes.enter_context(Remote(_CHILD, log, environment)),
            timeout_s=self.timeout_s,
            on_failure=lambda reason: progress.print_above(f"{variant.name}: failed: {reason}"),
            variant=variant,
            log=log,
        )
        self.entrants.append(entrant)
        case = {"model": variant.model, "how": variant.how, "spawned": spawned, **self.case}
        answer = entrant.ask("start", waits=len(self.case["buckets"]), **case)
        if answer is not None:
            entrant.started = answer["start"]
            self.remarks += [f"{variant.name}: {remark}" for remark in answer["remarks"]]
            if variant.name == REFERENCE:
                self.dtype = answer["dtype"]
                self.remarks += answer["assumptions"]
            self._judge(entrant)
        if entrant.failure is not None and variant.name == REFERENCE:
            raise ModelError(
                f"the model failed in eager mode: {entrant.failure}", "make it run uncompiled first"
            )
        if entrant.failure is None and (start := entrant.started) is not None:
            self.progress.print_above(
                f"{variant.name}: first outputs after {start['process_seconds']:.1f} s, "
                f"{start['benchmarks']} benchmarks"
            )

    def allow_rounding(self) -> None:
        """Let variants be `MOST_TIMES` as far from eager as a baseline in `MOST_DEFAULT` is."""
        for baseline in (each for each in self._running() if each.variant.name == BASELINE):
            limits = [
                max(limit, MOST_TIMES * error) if error <= MOST_DEFAULT * limit else limit
                for error, limit in baseline.errors
            ]
            for entrant in self._running():
                pairs = zip(entrant.errors, limits, strict=True)
                entrant.errors = [(error, max(own, limit)) for (error, own), limit in pairs]

    def prepare(self, launch: str, l2: str) -> None:
        freed = [entrant.ask("release") for entrant in self._running()]
        running = self._running()
        rooms = [answer["room"] for answer in freed if answer is not None]
        room = rooms[-1] // len(running) if running else 0
        for entrant in running:
            prepared = entrant.ask("prepare", launch=launch, l2=l2, room=room)
            if prepared is not None:
                name = entrant.variant.name
                self.remarks += [f"{name}: {remark}" for remark in prepared["remarks"]]

    def run(self, rounds: int, buckets: int) -> None:
        for entrant in self._running():
            entrant.times = [[] for _ in range(buckets)]
        for number in range(rounds):
            for bucket in range(buckets):
                for entrant in in_turn(self._running(), number):
                    timed = entrant.ask("time", bucket=bucket)
                    if timed is not None:
                        entrant.times[bucket].append(timed)
            self.progress.show("timing", done=number + 1, total=rounds)

    def idle(self) -> Iterator[str]:
        on_cpu = ": on a CPU it tunes frozen weights only, and only a table's variant freezes them"
        cause = on_cpu if self.case["device"] == "cpu" else ""
        for entrant in self.entrants:
            name, start = entrant.variant.name, entrant.started
            if start is None:
                continue
            if entrant.variant.how is How.MAX_AUTOTUNE and start["benchmarks"] == 0:
                yield f"{name} measured nothing{cause}"
            if unfrozen := start["miss_reasons"].get(MissReason.NEEDS_FREEZING, 0):
                said = f"{unfrozen} of its misses have a row for frozen weights"
                yield f"{name}: {said}; compare with --freezing"

    def _running(self) -> list[_VariantEntrant]:
        return [entrant for entrant in self.entrants if entrant.failure is None]

    def _judge(self, entrant: _VariantEntrant) -> None:
        is_eager = entrant is self.entrants[0]
        answer = entrant.ask("agree", folder=str(self.scratch), keep=is_eager)
        if answer is None:
            return
        entrant.errors = answer["errors"]
        is_same_model = entrant.variant.model == self.entrants[0].variant.model
        for what in ("inputs", *(["weights"] if is_same_model else [])):
            if self._digests.setdefault(what, answer[what]) != answer[what]:
                entrant.fail(
                    f"its {what} differ from eager's: make them from torch's generator alone, "
                    "which is seeded alike in every process"
                )


def serve(handlers: Mapping[str, Callable[..., Answer]]) -> None:
    """Answer requests of standard input with *handlers*, as a `Remote`'s program.

    A request ``{"do": NAME, ...}`` calls the handler NAME with the other fields as arguments. An
    exception of the handler is answered as ``{"failed": REASON}``, its traceback goes to stderr.
    """
    requests = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # the user's code gets an empty standard input
    with os.fdopen(requests, "rb") as commands, answering() as send:
        for line in commands:
            request = json.loads(line)
            try:
                answer = handlers[request.pop("do")](**request)
            except Exception as error:  # noqa: BLE001  the user's model may raise anything
                traceback.print_exc()
                answer = {"failed": reason_of(error)}
            sys.stdout.flush()
            sys.stderr.flush()
            send(answer)
