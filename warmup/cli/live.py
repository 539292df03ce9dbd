"""A live line on stderr; on a stream that is no terminal only what is said is printed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from warmup.core.errors import printable


class LiveLine(AbstractContextManager["LiveLine"]):
    """How far a long command is: what it is at, how many *units* of how many, elapsed time."""

    def __init__(self, units: str, *columns: ProgressColumn) -> None:
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn(units, markup=False),
            TimeElapsedColumn(),
            *columns,
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

    def show(
        self, at: str | None = None, *, done: int | None = None, total: int | None = None
    ) -> None:
        """Show what it is at, and how many units are done; what is not given stays."""
        self._progress.update(self._task, description=at, completed=done, total=total)

    def say(self, line: str) -> None:
        """Print *line* above the live line."""
        self._console.print(printable(line), soft_wrap=True)
