"""`Observer` and `BuildReport`: the events of a running build, and the result of a finished one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warmup.buckets.bucket import Bucket
from warmup.core.call_cost import CallCost
from warmup.core.machine_state import MachineState
from warmup.core.method import Method
from warmup.core.phases import StageSeconds
from warmup.core.roofline import Peaks
from warmup.core.rows import Tuned
from warmup.core.runtime import Runtime
from warmup.core.uncompiled import NONE_UNCOMPILED, Uncompiled
from warmup.table import Table
from warmup.tuning.rows_from import RowSource

if TYPE_CHECKING:
    from warmup.models.inferred_inputs import Assumption
    from warmup.models.padding.prepare import Prepared
    from warmup.tuning.pack_bundle import PackedBundle

NOT_BEGUN: Final = "the budget was spent before it was begun"  # why a key is in ``not_tuned``


class Observer:
    """Receiver of the events of a build. Each method ignores its event unless it is overridden."""

    def model_loaded(self, assumptions: Sequence[Assumption]) -> None:
        """The model and its inputs are known, with *assumptions* where nobody named them."""

    def measuring_on(self, here: Runtime, method: Method) -> None:
        """Whatever is measured from now on is measured *here*, by *method*."""

    def problems_expected(self, count: int) -> None:
        """A bucket of the model has about *count* problems, by its different weights; 0: unknown.

        Rows that the table has already are not taken off.
        """

    def buckets_counted(self, buckets: Sequence[Bucket]) -> None:
        """The build will tune *buckets*; nothing is tuned yet."""

    def bucket_started(
        self, bucket: Bucket, index: int, total: int, *, weights_padded: bool
    ) -> None:
        """Run *index* (from 0) of *total* begins: *bucket*, its weights padded or not."""

    def device_looked_at(self, remarks: Sequence[str]) -> None:
        """The device's condition was read, before the first or after the last run."""

    def waiting_started(self, reason: str, seconds: float) -> None:
        """The machine is busy for *reason*; the build waits for quiet, at most so many seconds."""

    def devices_ready(self, names: Sequence[str], control_us: Mapping[str, float]) -> None:
        """The devices *names* time now, each with its time of the control problem."""

    def problem_given(self, key: str, device: str, total: int) -> None:
        """The problem *key*, one of *total*, was given to *device*, one of several."""

    def device_left_out(self, name: str, reason: str) -> None:
        """The device *name* takes no further problem."""

    def problem_lost(self, key: str, device: str, reason: str, *, goes_on: bool) -> None:
        """The worker on *device* was lost with the problem *key*, which another takes over or not.

        With *goes_on* it is taken over.
        """

    def candidates_compiled(self, done: int, total: int) -> None:
        """A graph waits until *total* candidates are compiled; *done* of them are."""

    def problem_finished(self, tuned: Tuned) -> None:
        """A problem was tuned, and its row is on disk."""

    def output_wrong(self, name: str, rows: int, judgement: Judgement) -> None:
        """The output of the bucket *name* is wrong; the row to blame is searched among *rows*."""

    def rows_tried(self, name: str, rows: int, judgement: Judgement) -> None:
        """The bucket *name* was served from *rows* of its rows, to find the row to blame."""

    def rows_rejected(self, line: str) -> None:
        """Rows were marked as not trusted; *line* says which, why, and what is served instead."""

    def host_preferred(self, line: str) -> None:
        """Winners for the host were tried where it limits a bucket; *line* says with what gain."""

    def bucket_finished(self, result: BucketResult) -> None:
        """A bucket was tuned, and its output is right."""

    def packing_started(self) -> None:
        """The table is complete; its bundle is made now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How far outputs are from ``reference``, and the limit: relative L2 of the worst tensor.

    ``eager`` and ``default`` are the errors of eager and of default mode for the same tensor, None
    where they were not needed or could not be computed. ``remark`` says why something is missing.
    """

    error: float
    limit: float
    reference: str = "eager"
    eager: float | None = None
    default: float | None = None
    remark: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the error is finite and within the limit."""
        return math.isfinite(self.error) and self.error <= self.limit

    @property
    def brief(self) -> str:
        """The error as text, with the reference and the modes that it is compared with."""
        return f"error {self.error:.1e} against {self.reference}{self._beside}"

    def __str__(self) -> str:
        remark = f"; {self.remark}" if self.remark else ""
        return (
            f"{self.error:.2e} away from {self.reference} (relative L2), "
            f"limit {self.limit:.2e}{self._beside}{remark}"
        )

    @property
    def _beside(self) -> str:
        others = [
            f"{name} {error:.2e}"
            for name, error in (("eager", self.eager), ("default mode", self.default))
            if error is not None
        ]
        return f" ({', '.join(others)})" if others else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketResult:
    """A finished run of a bucket: its keys in graph order, how many of them were tuned in it, time.

    ``judgement`` is that of the compiled output, served from the table.
    ``uncovered`` counts measurements that no row covers, by site. ``weights_padded``: the groups
    that the table pads were padded. ``left_out`` repeated layers were not compiled: another bucket
    has shown that the whole model asks for the same rows. ``graphs`` is the number of graphs that
    torch.compile made; several where the model's code breaks the graph. ``cost`` is that of a call,
    None on a CPU. ``uncompiled`` is what runs outside of these graphs.
    """

    bucket: Bucket
    keys: tuple[str, ...]
    tuned: int
    judgement: Judgement
    seconds: float
    uncovered: Mapping[str, int] = field(default_factory=dict)
    weights_padded: bool = False
    left_out: int = 0
    graphs: int = 1
    cost: CallCost | None = None
    uncompiled: Uncompiled = NONE_UNCOMPILED

    @property
    def error(self) -> float:
        """The relative L2 distance of the compiled output to the reference of ``judgement``."""
        return self.judgement.error

    @property
    def name(self) -> str:
        """The bucket, and whether weights were padded, for people."""
        return name_of(self.bucket, weights_padded=self.weights_padded)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBucket:
    """What one bucket asks for: the keys with a row, those to tune, and what has no key.

    ``left_out`` repeated layers were not compiled; ``graphs`` is the number of graphs, and
    ``uncompiled`` is what runs outside of them.
    """

    bucket: Bucket
    known: tuple[str, ...]
    missing: tuple[str, ...]
    seconds: float
    graphs: int = 1
    left_out: int = 0
    uncompiled: Uncompiled = NONE_UNCOMPILED


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """What a build would do: its buckets, and the problems that have a row or would be tuned.

    ``remarks`` says what the plan leaves out.
    """

    buckets: tuple[PlannedBucket, ...]
    known: tuple[str, ...]
    missing: tuple[str, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """What one of several devices did in a build: how many problems it tuned.

    ``control_us`` is its time of the control problem, None where it did not start. ``left_out`` is
    why it took no further problem, empty where it took part until the end.
    """

    name: str
    problems: int
    control_us: float | None = None
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """A finished build.

    ``buckets`` has a result for each bucket, and a second one where weights were padded as well.
    ``timings`` has every candidate of the problems that this build tuned.

    After a build from a misses document, ``known`` are keys that the table had already, and
    ``not_rebuilt`` keys that could not be tuned, with the reason. ``not_tuned`` are keys without a
    measurable candidate, with the reason: they keep an older row or have none. ``not_fused`` are
    keys whose row was measured bare, without the fused operations, with the reason. ``distrusted``
    are keys whose row is in the table but not served, with the reason.

    ``prepared`` says which weights the second runs padded, None when weights were not measured.
    ``peaks`` are the measured peaks of the device, None on a CPU; ``bundle`` is the bundle that was
    written, None without one. ``machine`` says what disturbed the measurements. With a retry
    ``retried`` are the keys whose rows were to be measured again, and ``kept`` those of them whose
    new times were no better, so that the older row stays, with the reason.

    ``plan`` is that of a dry run, which has nothing else. ``stages`` says how ``seconds`` divide,
    without those of packing a bundle. ``rows_from`` says which rows of
    earlier tables were taken in place of a measurement. ``devices`` has the share of each device of
    a build on several; ``stages`` are then summed over all of their workers.
    """

    path: Path
    table: Table
    digest: str
    buckets: tuple[BucketResult, ...]
    timings: tuple[Tuned, ...]
    seconds: float
    known: tuple[str, ...] = ()
    not_rebuilt: Mapping[str, str] = field(default_factory=dict)
    not_tuned: Mapping[str, str] = field(default_factory=dict)
    not_fused: Mapping[str, str] = field(default_factory=dict)
    peaks: Peaks | None = None
    prepared: Prepared | None = None
    bundle: PackedBundle | None = None
    distrusted: Mapping[str, str] = field(default_factory=dict)
    machine: MachineState = field(default_factory=MachineState)
    retried: frozenset[str] | None = None
    kept: Mapping[str, str] = field(default_factory=dict)
    plan: BuildPlan | None = None
    stages: StageSeconds = field(default_factory=dict)
    rows_from: tuple[RowSource, ...] = ()
    devices: tuple[DeviceShare, ...] = ()

    @property
    def taken(self) -> tuple[str, ...]:
        """The keys whose row was taken from an earlier table."""
        return tuple(key for source in self.rows_from for key in source.taken)

    @property
    def uncovered(self) -> Mapping[str, int]:
        """Measurements that no row covers and that serving repeats, by site, over all buckets."""
        counts: Counter[str] = Counter()
        for result in self.buckets:
            counts.update(result.uncovered)
        return dict(counts)


def name_of(bucket: Bucket, *, weights_padded: bool = False) -> str:
    """Return the name of *bucket* for people: whether weights are padded."""
    return f"{bucket}, weights padded" if weights_padded else str(bucket)
