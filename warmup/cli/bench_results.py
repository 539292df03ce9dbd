"""What a `bench` command leaves in the folder of --out, while it runs and at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from warmup.bench.charts.draw import check_matplotlib
from warmup.bench.files import write_json
from warmup.core.errors import printable

Report = TypeVar("Report")


@dataclass(frozen=True, slots=True)
class BenchResults(Generic[Report]):
    """The files of one benchmark in *folder*; without one there are none.

    Raises:
        SettingsError: there is a folder and charts cannot be drawn, or a file cannot be written.
    """

    folder: Path | None
    stem: str
    document: Callable[[Report], Mapping[str, Any]]
    draw_charts: Callable[[Report, Path], tuple[Path, ...]]

    def __post_init__(self) -> None:
        if self.folder is not None:
            check_matplotlib()  # now, and not after all the measuring

    def keep(self, report: Report) -> None:
        """Write the document of what is measured so far."""
        if self.folder is not None:
            self._write(report, self.folder)

    def interrupted(self) -> None:
        """Say on stderr where the finished shapes are."""
        where = "" if self.folder is None else f": finished shapes are in {self.folder}"
        say(f"interrupted{where}")

    def finish(self, report: Report) -> None:
        """Write the document, draw the charts, and say on stderr what was written."""
        if self.folder is None:
            return
        for path in (self._write(report, self.folder), *self.draw_charts(report, self.folder)):
            say(f"wrote {path}")

    def _write(self, report: Report, folder: Path) -> Path:
        return write_json(self.document(report), folder / f"{self.stem}.json")


def say(line: str) -> None:
    """Print *line* on stderr; nothing in it can drive a terminal."""
    sys.stderr.write(f"{printable(line)}\n")
