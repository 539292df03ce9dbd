"""`Race`: the processes of a comparison, started one after the other, then timed in turn.

Only one process works at a time. A process that fails, dies or hangs is ended, and the others go
on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from warmup.bench.compare.comparison import (
    BASELINE,
    REFERENCE_VARIANT,
    BucketTime,
    Demand,
    FirstOutput,
    Result,
    Start,
    Variant,
)
from warmup.bench.compare.remote import Answer, Entrant, Remote
from warmup.core.child_process import Caches
from warmup.core.errors import ModelError
from warmup.core.phases import phases_from
from warmup.core.roofline import Peaks
from warmup.core.samples import Samples
from warmup.core.turns import in_turn
from warmup.table.policy import MOST_DEFAULT, MOST_TIMES

_CHILD: Final = ("-m", "warmup.bench.compare.variant_process")


class CompareObserver:
    """Receiver of a comparison's events. Each method ignores its event unless it is overridden."""

    def variant_started(self, variant: Variant) -> None:
        """The process of *variant* is about to start."""

    def variant_ready(self, variant: Variant, start: Start) -> None:
        """The first outputs of *variant* are computed, and it can be timed."""

    def variant_failed(self, variant: Variant, reason: str) -> None:
        """*variant* failed for *reason* and takes no further part."""

    def round_finished(self, number: int, total: int) -> None:
        """Every variant was timed once more in every bucket; *number* counts from 1."""


@dataclass(kw_only=True)
class _VariantEntrant(Entrant):
    """A variant, its process, and the times measured so far."""

    variant: Variant
    log: Path
    start: Start | None = None
    errors: Sequence[Sequence[float]] = ()
    times: list[tuple[list[float], list[float], list[float]]] = field(default_factory=list)

    def result(self, keeps_log: bool) -> Result:  # noqa: FBT001  the parameter has a clear name
        """Return the start and the times of the variant, or why it failed."""
        cells = () if self.failure is not None else self._cells()
        log = self.log.name if keeps_log else None
        return Result(
            variant=self.variant, start=self.start, cells=cells, failure=self.failure, log=log
        )

    def _cells(self) -> tuple[BucketTime, ...]:
        return tuple(
            BucketTime(
                device=Samples(tuple(device)),
                wall=Samples(tuple(wall)),
                host=Samples(tuple(host)),
                error=error,
                limit=limit,
            )
            for (device, wall, host), (error, limit) in zip(self.times, self.errors, strict=True)
        )


@dataclass
class Race:
    """A comparison in progress: its processes, and what they have answered."""

    scratch: Path
    logs: Path
    case: Mapping[str, Any]
    timeout_s: float
    observer: CompareObserver
    processes: contextlib.ExitStack
    entrants: list[_VariantEntrant] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)
    dtype: str = ""
    peaks: Peaks | None = None
    remarks: list[str] = field(default_factory=list)
    _digests: dict[str, str] = field(default_factory=dict)

    def start(self, variant: Variant) -> None:
        """Start the process of *variant*, and compare its first outputs with eager's.

        Raises:
            ModelError: *variant* is eager mode, and it failed.
        """
        self.observer.variant_started(variant)
        log = self.logs / f"compare-{variant.name}.log"
        spawned = time.monotonic()
        environment = Caches(self.scratch / variant.name).environment()
        remote = self.processes.enter_context(Remote(_CHILD, log, environment))
        entrant = _VariantEntrant(
            remote=remote,
            timeout_s=self.timeout_s,
            on_failure=partial(self.observer.variant_failed, variant),
            variant=variant,
            log=log,
        )
        self.entrants.append(entrant)
        case = {"model": variant.model, "how": variant.how, "spawned": spawned, **self.case}
        start = entrant.ask("start", **case)
        if start is not None:
            entrant.start = _start_from(start)
            self.remarks += [f"{variant.name}: {remark}" for remark in start["remarks"]]
            self._check(entrant)
        if entrant.failure is not None and variant.name == REFERENCE_VARIANT:
            raise ModelError(
                f"the model failed in eager mode: {entrant.failure}", "make it run uncompiled first"
            )
        if entrant.failure is None and entrant.start is not None:
            self.observer.variant_ready(variant, entrant.start)

    def allow_rounding(self) -> None:
        """Let every variant be as far from eager as the baseline is, times `MOST_TIMES`.

        Eager rounds too: in a deep bf16 model default mode, which nobody tuned, is further from
        eager than the tolerance. A baseline beyond `MOST_DEFAULT` tolerances excuses nothing.
        """
        named = (entrant for entrant in self._running() if entrant.variant.name == BASELINE)
        baseline = next(named, None)
        if baseline is None:
            return
        limits = [
            max(limit, MOST_TIMES * error) if error <= MOST_DEFAULT * limit else limit
            for error, limit in baseline.errors
        ]
        for entrant in self._running():
            pairs = zip(entrant.errors, limits, strict=True)
            entrant.errors = [(error, max(own, limit)) for (error, own), limit in pairs]

    def prepare(self, launch: str, l2: str) -> None:
        """Prepare the timing of every variant, with *launch* and *l2*.

        All variants have equal room for copies, so that the fixed cost of a batch is shared by
        equally many calls. What an earlier preparation holds is freed before.
        """
        for entrant in self._running():
            entrant.ask("release")
        running = self._running()
        answer = running[0].ask("room") if running else None
        room = 0 if answer is None else answer["bytes"] // len(running)
        for entrant in self._running():
            prepared = entrant.ask("prepare", launch=launch, l2=l2, room=room)
            if prepared is not None:
                name = entrant.variant.name
                self.remarks += [f"{name}: {remark}" for remark in prepared["remarks"]]

    def run(self, rounds: int, buckets: int) -> None:
        """Time every bucket in every variant, *rounds* times."""
        for entrant in self._running():
            entrant.times = [([], [], []) for _ in range(buckets)]
        for number in range(rounds):
            for bucket in range(buckets):
                for entrant in in_turn(self._running(), number):
                    timed = entrant.ask("time", bucket=bucket)
                    if timed is not None:
                        names = ("device_us", "wall_us", "host_us")
                        for times, each in zip(entrant.times[bucket], names, strict=True):
                            times.append(timed[each])
            self.observer.round_finished(number + 1, rounds)

    def _running(self) -> list[_VariantEntrant]:
        return [entrant for entrant in self.entrants if entrant.failure is None]

    def _check(self, entrant: _VariantEntrant) -> None:
        """Compare outputs, weights and inputs with eager's; eager is the first entrant."""
        folder = str(self.scratch)
        if entrant.variant.name == REFERENCE_VARIANT:
            self._measure(entrant)
            entrant.ask("keep_outputs", folder=folder)
        answer = entrant.ask("agree", folder=folder)
        if answer is None:
            return
        entrant.errors = answer["errors"]
        is_same_model = entrant.variant.model == self.entrants[0].variant.model
        for what in ("inputs", *(["weights"] if is_same_model else [])):
            if self._digests.setdefault(what, answer[what]) != answer[what]:
                entrant.fail(
                    f"its {what} differ from eager's: make them from torch's generator alone, "
                    "which is seeded alike in every process",
                )

    def _measure(self, eager: _VariantEntrant) -> None:
        """Record the demand of every bucket, and the measured peaks of the device."""
        answer = eager.ask("demand")
        if answer is not None:
            self.demands = [
                Demand(demand["flops"], demand["moved_bytes"], tuple(demand["dtypes"]))
                for demand in answer["demands"]
            ]
            self.dtype = answer["dtype"]
            self.remarks += answer["remarks"]
        answer = eager.ask("peaks")
        if answer is not None:
            self.peaks = None if answer["peaks"] is None else Peaks(**answer["peaks"])
            self.remarks += answer["remarks"]


def _start_from(answer: Answer) -> Start:
    outputs = ({**output, "phases": phases_from(output["phases"])} for output in answer["outputs"])
    return Start(
        phases_before=phases_from(answer["phases_before"]),
        outputs=tuple(FirstOutput(**output) for output in outputs),
        sites=answer["sites"],
        miss_reasons=answer["miss_reasons"],
    )
