"""Live progress of a build on stderr: buckets and problems done, elapsed time, an estimate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from warmup.bucket import Bucket
from warmup.choice import Tuned
from warmup.outcome import BucketResult


class BuildProgress(AbstractContextManager["BuildProgress"]):
    """A `warmup.outcome.Observer` that draws; on a stream that is no terminal it prints lines."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("buckets", markup=False),
            TimeElapsedColumn(),
            TextColumn("left", markup=False),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=None)
        self._problems = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def bucket_started(self, bucket: Bucket, index: int, total: int) -> None:
        self._progress.update(self._task, total=total, completed=index, description=str(bucket))

    def device_looked_at(self, complaints: Sequence[str]) -> None:
        for said in complaints:
            self._console.print(f"device: {said}", soft_wrap=True)

    def problem_finished(self, tuned: Tuned) -> None:
        self._problems += 1
        description = f"{self._problems} problems tuned"
        self._progress.update(self._task, description=description)

    def bucket_finished(self, result: BucketResult) -> None:
        self._progress.advance(self._task)
        self._console.print(
            f"{result.bucket}: {result.tuned} tuned, {len(result.keys) - result.tuned} known, "
            f"error {result.error:.1e}, {result.seconds:.1f} s",
            soft_wrap=True,
        )

    def interrupted(self) -> None:
        """Say that finished work is kept."""
        self._progress.stop()
        sys.stderr.write(
            f"interrupted: {self._problems} problems tuned now are in the table; "
            "run the same command again to tune the rest\n"
        )
