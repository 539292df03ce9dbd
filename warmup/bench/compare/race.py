"""The processes of one comparison: started one after the other, then timed in turn.

Only one of them works at a time. One that fails, dies or hangs is out, and the others go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warmup.bench.compare.comparison import (
    REFERENCE_VARIANT,
    BucketTime,
    Demand,
    FirstOutput,
    Result,
    Start,
    Variant,
)
from warmup.bench.compare.remote import Answer, Remote
from warmup.core.child_process import Caches, ChildError
from warmup.core.errors import ModelError
from warmup.core.roofline import Peaks
from warmup.core.samples import Samples

_CHILD: Final = "warmup.bench.compare.contender"


class CompareObserver:
    """Receiver of a comparison's events. Each method ignores its event unless it is overridden."""

    def variant_started(self, variant: Variant) -> None:
        """A variant begins to make its first outputs."""

    def variant_ready(self, variant: Variant, start: Start) -> None:
        """It made all of them, and can be timed."""

    def variant_failed(self, variant: Variant, reason: str) -> None:
        """It is out."""

    def round_finished(self, number: int, total: int) -> None:
        """Every variant was timed once more in every bucket; *number* counts from 1."""


@dataclass
class _Entrant:
    """One variant and its process."""

    variant: Variant
    log: Path
    remote: Remote
    start: Start | None = None
    errors: Sequence[Sequence[float]] = ()
    times: list[tuple[list[float], list[float]]] = field(default_factory=list)
    failure: str | None = None

    def result(self, keeps_log: bool) -> Result:  # noqa: FBT001  said by its name
        """Return what came of it."""
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
                error=error,
                limit=limit,
            )
            for (device, wall), (error, limit) in zip(self.times, self.errors, strict=True)
        )


@dataclass
class Race:
    """One comparison under way."""

    scratch: Path
    logs: Path
    case: Mapping[str, Any]
    timeout_s: float
    observer: CompareObserver
    processes: contextlib.ExitStack
    entrants: list[_Entrant] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)
    dtype: str = ""
    peaks: Peaks | None = None
    remarks: list[str] = field(default_factory=list)
    _digests: dict[str, str] = field(default_factory=dict)

    def start(self, variant: Variant) -> None:
        """Let *variant* make its first outputs and compare them with eager's.

        Raises:
            ModelError: it is eager mode, and it failed.
        """
        self.observer.variant_started(variant)
        log = self.logs / f"compare-{variant.name}.log"
        spawned = time.monotonic()
        environment = Caches(self.scratch / variant.name).environment()
        remote = self.processes.enter_context(Remote(_CHILD, log, environment))
        entrant = _Entrant(variant, log, remote)
        self.entrants.append(entrant)
        case = {"model": variant.model, "how": variant.how, "spawned": spawned, **self.case}
        start = self._ask(entrant, "start", **case)
        if start is not None:
            entrant.start = _start_from(start)
            self.remarks += [f"{variant.name}: {said}" for said in start["remarks"]]
            self._check(entrant)
        if entrant.failure is not None and variant.name == REFERENCE_VARIANT:
            raise ModelError(
                f"the model failed in eager mode: {entrant.failure}", "make it run uncompiled first"
            )
        if entrant.failure is None and entrant.start is not None:
            self.observer.variant_ready(variant, entrant.start)

    def prepare(self, launch: str, l2: str) -> None:
        """Make every variant ready to be timed, by a CUDA graph for each bucket where asked.

        All have the same room for copies, so that what a batch costs is shared by as many calls.
        """
        running = self._running()
        found = self._ask(running[0], "room") if running else None
        room = 0 if found is None else found["bytes"] // len(running)
        for entrant in self._running():
            done = self._ask(entrant, "prepare", launch=launch, l2=l2, room=room)
            if done is not None:
                self.remarks += [f"{entrant.variant.name}: {said}" for said in done["remarks"]]

    def run(self, rounds: int, buckets: int) -> None:
        """Time every bucket in every variant, *rounds* times."""
        for entrant in self._running():
            entrant.times = [([], []) for _ in range(buckets)]
        for number in range(rounds):
            for bucket in range(buckets):
                running = self._running()
                first = number % len(running) if running else 0
                for entrant in (*running[first:], *running[:first]):
                    timed = self._ask(entrant, "time", bucket=bucket)
                    if timed is not None:
                        device, wall = entrant.times[bucket]
                        device.append(timed["device_us"])
                        wall.append(timed["wall_us"])
            self.observer.round_finished(number + 1, rounds)

    def _running(self) -> list[_Entrant]:
        return [entrant for entrant in self.entrants if entrant.failure is None]

    def _check(self, entrant: _Entrant) -> None:
        """Compare outputs, weights and inputs with eager's, which come first."""
        folder = str(self.scratch)
        if entrant.variant.name == REFERENCE_VARIANT:
            self._measure(entrant)
            self._ask(entrant, "keep_outputs", folder=folder)
        found = self._ask(entrant, "agree", folder=folder)
        if found is None:
            return
        entrant.errors = found["errors"]
        is_own = entrant.variant.model == self.entrants[0].variant.model
        for what in ("inputs", *(["weights"] if is_own else [])):
            if self._digests.setdefault(what, found[what]) != found[what]:
                self._fail(
                    entrant,
                    f"its {what} differ from eager's: make them from torch's generator alone, "
                    "which is seeded alike in every process",
                )

    def _measure(self, eager: _Entrant) -> None:
        """Learn what a call asks of the device, and what the device can give at most."""
        found = self._ask(eager, "demand")
        if found is not None:
            self.demands = [Demand(**demand) for demand in found["demands"]]
            self.dtype = found["dtype"]
            self.remarks += found["remarks"]
        found = self._ask(eager, "peaks")
        if found is not None:
            self.peaks = None if found["peaks"] is None else Peaks(**found["peaks"])
            self.remarks += found["remarks"]

    def _ask(self, entrant: _Entrant, what: str, **arguments: Any) -> Answer | None:
        """Return the answer of *entrant*; None when it has failed, now or before."""
        if entrant.failure is not None:
            return None
        try:
            return entrant.remote.ask({"do": what, **arguments}, self.timeout_s)
        except ChildError as lost:
            self._fail(entrant, str(lost))
            return None

    def _fail(self, entrant: _Entrant, reason: str) -> None:
        entrant.failure = reason
        entrant.remote.close()
        self.observer.variant_failed(entrant.variant, reason)


def _start_from(answer: Answer) -> Start:
    return Start(
        import_seconds=answer["import_seconds"],
        load_seconds=answer["load_seconds"],
        install_seconds=answer["install_seconds"],
        measure_seconds=answer["measure_seconds"],
        outputs=tuple(FirstOutput(**output) for output in answer["outputs"]),
        sites=answer["sites"],
        miss_reasons=answer["miss_reasons"],
    )
