"""Live progress of a build on stderr: buckets and problems done, elapsed time, an estimate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich.progress import TextColumn, TimeRemainingColumn

from warmup.buckets.bucket import Bucket, describe_count
from warmup.cli.live import LiveLine
from warmup.core.rows import Tuned
from warmup.tuning.report import BucketResult, name_of


class BuildProgress(LiveLine):
    """An observer of a build that draws, and passes on to *note* each problem that is done."""

    def __init__(self, note: Callable[[Tuned], None] = lambda _tuned: None) -> None:
        left = TimeRemainingColumn(elapsed_when_finished=False)
        super().__init__("buckets", TextColumn("left", markup=False), left)
        self._problems = self._buckets = 0
        self._note = note

    def buckets_counted(self, buckets: Sequence[Bucket]) -> None:
        if len(buckets) > 1:
            self.say(describe_count(buckets))

    def bucket_started(
        self, bucket: Bucket, index: int, total: int, *, weights_padded: bool
    ) -> None:
        self.show(name_of(bucket, weights_padded=weights_padded), done=index, total=total)

    def device_looked_at(self, complaints: Sequence[str]) -> None:
        for said in complaints:
            self.say(f"device: {said}")

    def problem_finished(self, tuned: Tuned) -> None:
        self._note(tuned)
        self._problems += 1
        self.show(f"{self._problems} problems tuned")

    def bucket_finished(self, result: BucketResult) -> None:
        self._buckets += 1
        self.show(done=self._buckets)
        without = f", without {result.left_out} layers that repeat" if result.left_out else ""
        self.say(
            f"{result.name}: {result.tuned} tuned, {len(result.keys) - result.tuned} known, "
            f"error {result.error:.1e}, {result.seconds:.1f} s{without}"
        )

    def packing_started(self) -> None:
        self.show("packing the bundle")

    def interrupted(self) -> None:
        """Say that finished work is kept."""
        self.__exit__(None, None, None)
        sys.stderr.write(
            f"interrupted: {self._problems} problems tuned now are in the table; "
            "run the same command again to tune the rest\n"
        )
