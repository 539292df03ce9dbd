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


@dataclass(slots=True)
class BenchResults(Generic[PrintedReport]):
    """The files of one benchmark in *folder*: its document, and its charts where *charts*.

    Nothing is written without a folder.

    Raises:
        SettingsError: charts are wanted and cannot be drawn, or a file cannot be written.
    """

    folder: Path | None
    stem: str
    document: Callable[[PrintedReport], Mapping[str, Any]]
    draw_charts: Callable[[PrintedReport, Path], tuple[Path, ...]]
    charts: bool = True
    last: PrintedReport | None = None

    def __post_init__(self) -> None:
        if self.folder is not None and self.charts:
            check_matplotlib()  # now, and not after all the measuring

    def keep(self, report: PrintedReport) -> None:
        """Keep what is measured so far, and write its document."""
        self.last = report
        if self.folder is not None:
            self._write(report, self.folder)

    def interrupted(self) -> None:
        """Say on stderr where the finished shapes are."""
        if self.last is None:
            say("interrupted: no shape was finished")
        elif self.folder is None:
            say("interrupted: the finished shapes are printed")
        else:
            say(f"interrupted: finished shapes are printed, and in {self.folder}")

    def finish(self, report: PrintedReport) -> None:
        """Write the document, draw the charts, and say on stderr what was written."""
        if self.folder is None:
            return
        charts = self.draw_charts(report, self.folder) if self.charts else ()
        for path in (self._write(report, self.folder), *charts):
            say(f"wrote {path}")

    def run(
        self,
        bench: Callable[..., PrintedReport],
        spell: Callable[[PrintedReport], Iterable[str]],
        *,
        as_json: bool,
    ) -> PrintedReport:
        """Run *bench* with ``say`` and ``keep``, print its report, write the files, return it.

        Where it is interrupted or fails, the report of the finished shapes is printed, and the
        command ends.

        Raises:
            Exception: whatever *bench* raises.
        """

        def print_finished() -> None:
            if self.last is not None:
                print_report(self.last, spell, self.document, as_json=as_json)

        def stop() -> None:
            self.interrupted()
            print_finished()

        with interruptible(stop):
            try:
                report = bench(say=say, keep=self.keep)
            except Exception:
                print_finished()
                raise
        print_report(report, spell, self.document, as_json=as_json)
        self.finish(report)
        return report

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
