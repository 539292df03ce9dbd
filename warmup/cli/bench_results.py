"""What both `bench` commands share: the run with its files in --out, and the head of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from warmup.bench.charts.draw import check_matplotlib
from warmup.bench.files import write_json
from warmup.cli.output import PrintedReport, fold, print_report, say, timing, versions
from warmup.cli.signals import interruptible

if TYPE_CHECKING:
    from warmup.bench.layers.report import LayersReport
    from warmup.bench.matmul.report import MmReport


@dataclass(frozen=True, slots=True)
class BenchResults(Generic[PrintedReport]):
    """The files of one benchmark in *folder*: its document and its charts; none without a folder.

    Raises:
        SettingsError: there is a folder and charts cannot be drawn, or a file cannot be written.
    """

    folder: Path | None
    stem: str
    document: Callable[[PrintedReport], Mapping[str, Any]]
    draw_charts: Callable[[PrintedReport, Path], tuple[Path, ...]]

    def __post_init__(self) -> None:
        if self.folder is not None:
            check_matplotlib()  # now, and not after all the measuring

    def keep(self, report: PrintedReport) -> None:
        """Write the document of what is measured so far."""
        if self.folder is not None:
            self._write(report, self.folder)

    def interrupted(self) -> None:
        """Say on stderr where the finished shapes are."""
        where = "" if self.folder is None else f": finished shapes are in {self.folder}"
        say(f"interrupted{where}")

    def finish(self, report: PrintedReport) -> None:
        """Write the document, draw the charts, and say on stderr what was written."""
        if self.folder is None:
            return
        for path in (self._write(report, self.folder), *self.draw_charts(report, self.folder)):
            say(f"wrote {path}")

    def run(
        self,
        bench: Callable[..., PrintedReport],
        spell: Callable[[PrintedReport], Iterable[str]],
        *,
        as_json: bool,
    ) -> None:
        """Run *bench* with ``say`` and ``keep``, print its report, and write the files."""
        with interruptible(self.interrupted):
            report = bench(say=say, keep=self.keep)
        print_report(report, spell, self.document, as_json=as_json)
        self.finish(report)

    def _write(self, report: PrintedReport, folder: Path) -> Path:
        return write_json(self.document(report), folder / f"{self.stem}.json")


def spell_origin(report: LayersReport | MmReport) -> Iterator[str]:
    """Yield where and when a benchmark ran, and how its calls were timed."""
    where = report.provenance
    yield from fold(
        f"{where['device']}, {versions(where['torch'], where['triton'])}, {where['date']}", indent=2
    )
    yield (
        f"{report.dtype}, {timing(report.launch, report.l2)}, medians of {report.rounds} rounds "
        "with 95 % intervals"
    )
