"""`race`: start a model in several variants, time each in turn, and return a `Comparison`.

Each variant has its own process with empty caches, and only one process works at a time. First the
variants compute their first outputs; then a round times every bucket once in every variant, and
each round begins with another variant. A process that fails, dies or hangs is ended. `Remote` and
`serve` are the two sides of such a process; neither side's import loads torch.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from warmup.bench.compare import (
    BASELINE,
    FEWEST_ROUNDS,
    REFERENCE,
    BucketTime,
    CompareProgress,
    CompareRequest,
    Comparison,
    How,
    Origin,
    Result,
    Start,
    Variant,
    parse_variants,
)
from warmup.core.buckets import parse_buckets, parse_inputs
from warmup.core.device import Runtime, compare_runtimes
from warmup.core.errors import MissReason, ModelError, SettingsError, warmup_error_in
from warmup.core.files import make_folder, temporary_folder
from warmup.core.processes import Child, ChildError, answering, in_turn
from warmup.core.rows import L2, SEED, Launch
from warmup.core.text import __version__
from warmup.core.trial import Samples
from warmup.table.schema import MOST_DEFAULT, MOST_TIMES
from warmup.table.store import FoundTable, discover, find

_CHILD: Final = ("-m", "warmup.bench.variant_process")
_ANSWER_LENGTH: Final = 300
_TIMES: Final = ("device", "wall", "host")

Answer = Mapping[str, Any]


def race(request: CompareRequest, progress: CompareProgress | None = None) -> Sequence[Comparison]:
    """Return how the model of *request* starts and runs in every bucket, for each of its launches.

    A variant that fails, dies, or does not answer in time has its failure in the result.
    """
    from warmup.table.codec import digest_of
    from warmup.table.store import write

    buckets = parse_buckets(request.seqlens, request.dims)
    parse_inputs(request.inputs)
    if request.rounds < FEWEST_ROUNDS:
        raise SettingsError(
            f"--rounds {request.rounds} is too few for an interval of 95 %",
            f"give {FEWEST_ROUNDS} or more",
        )
    variants, table, runtime, device = _entries(request)
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
            "seed": SEED,
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
            found = dict.fromkeys((*_remarks(table, runtime), *running.remarks, *running.idle()))
            reports.append(Comparison(origin, buckets, own, tuple(found)))
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


def _remarks(table: FoundTable | None, here: Runtime) -> Iterator[str]:
    if table is None:
        return
    yield from table.remarks
    for mismatch in compare_runtimes(table.table.provenance.runtime, here):
        yield f"{mismatch}{': every row is a miss' if mismatch.is_hard else ''}"


class Remote(Child):
    """A child that runs ``python PROGRAM... FD``, calls `serve`, and prints into the file *log*.

    *program* is the path of a program, or ``-m`` and a module. The end of the context kills it.
    """

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
    """A variant, its process, and the times measured so far."""

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
        """Let every variant be as far from eager as the baseline is, times `MOST_TIMES`.

        In a deep bf16 model default mode, which nobody tuned, is further from eager than the
        tolerance. A baseline beyond `MOST_DEFAULT` tolerances excuses nothing.
        """
        for baseline in (each for each in self._running() if each.variant.name == BASELINE):
            limits = [
                max(limit, MOST_TIMES * error) if error <= MOST_DEFAULT * limit else limit
                for error, limit in baseline.errors
            ]
            for entrant in self._running():
                pairs = zip(entrant.errors, limits, strict=True)
                entrant.errors = [(error, max(own, limit)) for (error, own), limit in pairs]

    def prepare(self, launch: str, l2: str) -> None:
        """Prepare the timing of every variant; what an earlier preparation holds is freed before.

        All variants have equal room for copies, so that the fixed cost of a batch is shared by
        equally many calls.
        """
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
        """Yield a remark for each variant that tuned nothing, or missed rows for frozen weights."""
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
                own = warmup_error_in(error)
                message = str(own) if own is not None else f"{type(error).__name__}: {error}"
                answer = {"failed": " ".join(message.split())[:_ANSWER_LENGTH]}
            sys.stdout.flush()
            sys.stderr.flush()
            send(answer)
