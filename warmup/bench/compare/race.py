"""The processes of one comparison: started one after the other, then timed in turn.

Only one of them works at a time. One that fails, dies or hangs is out, and the others go on.
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
from warmup.core.roofline import Peaks
from warmup.core.samples import Samples
from warmup.core.turns import in_turn

_CHILD: Final = ("-m", "warmup.bench.compare.contender")


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


@dataclass(kw_only=True)
class _VariantEntrant(Entrant):
    """One variant and its process."""

    variant: Variant
    log: Path
    start: Start | None = None
    errors: Sequence[Sequence[float]] = ()
    times: list[tuple[list[float], list[float]]] = field(default_factory=list)

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
    entrants: list[_VariantEntrant] = field(default_factory=list)
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
        found = running[0].ask("room") if running else None
        room = 0 if found is None else found["bytes"] // len(running)
        for entrant in self._running():
            done = entrant.ask("prepare", launch=launch, l2=l2, room=room)
            if done is not None:
                self.remarks += [f"{entrant.variant.name}: {said}" for said in done["remarks"]]

    def run(self, rounds: int, buckets: int) -> None:
        """Time every bucket in every variant, *rounds* times."""
        for entrant in self._running():
            entrant.times = [([], []) for _ in range(buckets)]
        for number in range(rounds):
            for bucket in range(buckets):
                for entrant in in_turn(self._running(), number):
                    timed = entrant.ask("time", bucket=bucket)
                    if timed is not None:
                        device, wall = entrant.times[bucket]
                        device.append(timed["device_us"])
                        wall.append(timed["wall_us"])
            self.observer.round_finished(number + 1, rounds)

    def _running(self) -> list[_VariantEntrant]:
        return [entrant for entrant in self.entrants if entrant.failure is None]

    def _check(self, entrant: _VariantEntrant) -> None:
        """Compare outputs, weights and inputs with eager's, which come first."""
        folder = str(self.scratch)
        if entrant.variant.name == REFERENCE_VARIANT:
            self._measure(entrant)
            entrant.ask("keep_outputs", folder=folder)
        found = entrant.ask("agree", folder=folder)
        if found is None:
            return
        entrant.errors = found["errors"]
        is_own = entrant.variant.model == self.entrants[0].variant.model
        for what in ("inputs", *(["weights"] if is_own else [])):
            if self._digests.setdefault(what, found[what]) != found[what]:
                entrant.fail(
                    f"its {what} differ from eager's: make them from torch's generator alone, "
                    "which is seeded alike in every process",
                )

    def _measure(self, eager: _VariantEntrant) -> None:
        """Learn what a call asks of the device, and what the device can give at most."""
        found = eager.ask("demand")
        if found is not None:
            self.demands = [Demand(**demand) for demand in found["demands"]]
            self.dtype = found["dtype"]
            self.remarks += found["remarks"]
        found = eager.ask("peaks")
        if found is not None:
            self.peaks = None if found["peaks"] is None else Peaks(**found["peaks"])
            self.remarks += found["remarks"]


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
