"""How a comparison gets on, on stderr: a live line on a terminal, a line for each variant."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

from warmup.comparing.comparison import Start, Variant
from warmup.errors import printable


class CompareProgress(AbstractContextManager["CompareProgress"]):
    """An observer of a race that draws; on a stream that is no terminal it prints lines."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("rounds", markup=False),
            Elapsed(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=None)

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

    def variant_started(self, variant: Variant) -> None:
        """Name the variant that is starting."""
        self._progress.update(self._task, description=f"{variant.name}: first outputs")

    def variant_ready(self, variant: Variant, start: Start) -> None:
        """Print what its start took."""
        self._say(
            f"{variant.name}: first outputs after {start.process_seconds:.1f} s, "
            f"{start.benchmarks} benchmarks"
        )

    def variant_failed(self, variant: Variant, reason: str) -> None:
        """Print why it is out."""
        self._say(f"{variant.name}: failed: {reason}")

    def round_finished(self, number: int, total: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, description="timing", completed=number, total=total)

    def _say(self, line: str) -> None:
        self._console.print(printable(line), soft_wrap=True)
