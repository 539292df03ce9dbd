"""`BuildResults`: what comes of the problems of a build on several devices, as it comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial

from warmup.core.machine_state import MachineState, united
from warmup.core.phases import BuildStage
from warmup.core.roofline import Peaks
from warmup.core.rows import Row
from warmup.tuning.devices.crew import named_complaints
from warmup.tuning.devices.messages import FinishedProblem, ProblemTask
from warmup.tuning.devices.problem_queue import ProblemQueue
from warmup.tuning.devices.runner import Runner
from warmup.tuning.progress import Progress
from warmup.tuning.report import BucketResult


@dataclass(kw_only=True)
class BuildResults:
    """The listener of `run_queue`: each finished problem is in the table of ``progress``, on disk.

    Keys of ``again`` are measured although they have a row. The mappings are those of
    `BuildReport`. ``by_device`` counts the problems that each device finished.
    """

    progress: Progress
    queue: ProblemQueue
    again: Collection[str] = ()
    buckets: list[BucketResult] = field(default_factory=list)
    not_rebuilt: dict[str, str] = field(default_factory=dict)
    not_tuned: dict[str, str] = field(default_factory=dict)
    not_fused: dict[str, str] = field(default_factory=dict)
    stages: dict[BuildStage, float] = field(default_factory=dict)
    by_device: Counter[str] = field(default_factory=Counter)
    _sent: dict[str, dict[str, Row]] = field(default_factory=dict)
    _machines: dict[str, MachineState] = field(default_factory=dict)
    _earlier: list[tuple[str, MachineState]] = field(default_factory=list)  # of lost workers

    def task_for(self, runner: Runner, key: str) -> ProblemTask:
        """Return the task for *key*, with the rows that *runner* does not have yet."""
        sent, rows = self._sent.setdefault(runner.name, {}), self.progress.rows
        self.progress.rows.get(key)  # an earlier table's row is taken when it is looked up
        fresh = {name: row for name, row in rows.items() if sent.get(name) is not row}
        sent.update(fresh)
        number, total = self.queue.number_of(key), self.queue.total
        self.progress.observer.problem_given(key, runner.device, total)
        return ProblemTask(
            key=key,
            table=replace(self.progress.table, rows=fresh, imported={}),
            is_again=key in self.again,
            number=number,
            total=total,
        )

    def finished(self, runner: Runner, finished: FinishedProblem) -> None:
        """Write the rows of *finished* to the table, and keep the rest for the report.

        A row that another problem has measured meanwhile, on the way, stays.

        Raises:
            TableError: the table cannot be written.
        """
        if (peaks := finished.table.provenance.peaks) is not None:
            self.progress.measured_peaks = partial(_known, peaks)
        measured = self.progress.keys_since(0)
        for tuned in finished.tuned:
            if tuned.key == finished.key or tuned.key not in measured:
                self.progress.save(tuned)
        for key, reason in finished.distrusted.items():
            if key in self.progress.table.rows:
                self.progress.distrust([key], reason)
        if finished.result is not None:
            self.buckets.append(finished.result)
            self.progress.observer.bucket_finished(finished.result)
        if finished.not_rebuilt is not None:
            self.not_rebuilt[finished.key] = finished.not_rebuilt
        self.not_tuned |= finished.not_tuned
        self.not_fused |= finished.not_fused
        for stage, seconds in finished.stages.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + seconds
        self._machines[runner.name] = finished.machine
        self.by_device[runner.device] += 1

    def lost(self, runner: Runner, key: str, reason: str, *, goes_on: bool) -> None:
        """Forget what the lost worker of *runner* had, and report the loss."""
        self._sent.pop(runner.name, None)
        if (state := self._machines.pop(runner.name, None)) is not None:
            self._earlier.append((runner.name, state))
        self.progress.observer.problem_lost(key, runner.device, reason, goes_on=goes_on)

    def machine(self) -> MachineState:
        """Return what disturbed the measurements of all workers."""
        return united(
            replace(state, complaints=tuple(named_complaints(name, state.complaints)))
            for name, state in (*self._earlier, *self._machines.items())
        )


def _known(peaks: Peaks) -> Peaks:
    return peaks
