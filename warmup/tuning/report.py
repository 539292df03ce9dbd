"""`Observer` and `BuildReport`: the events of a running build, and the result of a finished one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from warmup.buckets.bucket import Bucket
from warmup.core.roofline import Peaks
from warmup.core.rows import Tuned
from warmup.table import Table

if TYPE_CHECKING:
    from warmup.models.padding.prepare import Prepared
    from warmup.tuning.pack_bundle import Packed


class Observer:
    """Receiver of the events of a build. Each method ignores its event unless it is overridden."""

    def buckets_counted(self, buckets: Sequence[Bucket]) -> None:
        """These are the buckets to be built; nothing is tuned yet."""

    def bucket_started(
        self, bucket: Bucket, index: int, total: int, *, weights_padded: bool
    ) -> None:
        """Run number *index* (from 0) of *total* begins: *bucket*, as it is or padded."""

    def device_looked_at(self, complaints: Sequence[str]) -> None:
        """The device's condition was read, before or after: what makes it doubtful, if anything."""

    def problem_finished(self, tuned: Tuned) -> None:
        """One problem was tuned and is on disk."""

    def bucket_finished(self, result: BucketResult) -> None:
        """A bucket was tuned and its output agrees with eager."""

    def packing_started(self) -> None:
        """The table is complete; its bundle is being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketResult:
    """One finished bucket: its keys in graph order, how many were tuned now, error and seconds.

    It was run with the weights as they are, or ``weights_padded`` where that pays. ``error`` is the
    relative L2 distance of the compiled output, served from the table, to eager; ``uncovered``
    counts, by site, what was measured although every row was there. ``left_out`` layers were not
    compiled, since they repeat and the whole model had asked for no more in another bucket.
    """

    bucket: Bucket
    keys: tuple[str, ...]
    tuned: int
    error: float
    seconds: float
    uncovered: Mapping[str, int] = field(default_factory=dict)
    weights_padded: bool = False
    left_out: int = 0

    @property
    def name(self) -> str:
        """The bucket, and how it was run, for people."""
        return name_of(self.bucket, weights_padded=self.weights_padded)


@dataclass(frozen=True, slots=True)
class BuildReport:
    """A finished build. ``buckets`` has each bucket once, and once more where weights were padded.

    ``timings`` holds every candidate of the problems tuned now.

    A build from a list of problems has ``known``, the keys that the table had already, and
    ``not_rebuilt``, those that it could not tune and why. ``not_tuned`` are keys of which no
    candidate could be measured, and why: they have no row, or the one that they had; ``not_fused``
    are keys whose row was measured without what follows the product, and why. ``prepared`` says
    which weights were padded for the second time, None when that was not asked for. ``peaks`` are
    those that rates were held against, None on a CPU. ``bundle`` is what was packed, None when it
    was not asked for.
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
    bundle: Packed | None = None

    @property
    def uncovered(self) -> Mapping[str, int]:
        """What is measured at serving although every row is there, by site, over all buckets."""
        counts: Counter[str] = Counter()
        for result in self.buckets:
            counts.update(result.uncovered)
        return dict(counts)


def name_of(bucket: Bucket, *, weights_padded: bool) -> str:
    """Return *bucket* for people, and whether it is run with padded weights."""
    return f"{bucket}, weights padded" if weights_padded else str(bucket)
