"""`ProgramSource`: a table of what a user's own program asks, without a model file."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from warmup.core.errors import BuildError, NothingRecordedError
from warmup.core.events import selections
from warmup.core.processes import RECORDING_VARIABLE, RecordingOrder
from warmup.core.text import printable
from warmup.keys.question import RegionQuestion
from warmup.keys.registry import kind_of
from warmup.serving.audit import MissedProblem
from warmup.serving.run import RunReport, run_with, temporary_folder
from warmup.table.codec import digest_of
from warmup.table.schema import Table
from warmup.table.store import read, read_folded
from warmup.tuning.build import (
    ThisProcess,
    build,
    check_out,
    find_setup,
    open_table,
    seconds_to_wait,
)
from warmup.tuning.problems import ProblemsSource
from warmup.tuning.progress import parse_budget
from warmup.tuning.recorder import read_regions
from warmup.tuning.report import BuildReport, Observer, ProgramRun
from warmup.tuning.request import OF_MODELS, BuildContext, BuildOptions, BuildRequest, Work

# The variable of an engine's own cache of graphs. Graphs from a cache ask nothing.
_CACHE_OF_ENGINE: Final = "VLLM_CACHE_ROOT"


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """A program that runs once, with `warmup.tuning.recorder` in each of its processes.

    A question is measured when it is asked, in the process that asks; what could not be measured,
    or with ``after`` every question, is tuned from its key when the program has ended. Each row is
    on disk before the next question is measured. Rows that the program asked for and whose times do
    not carry a decision are measured again, where that needs no program. Weights are frozen where
    the program does so, or with ``freezing``. Signals and ``stdout_to_stderr`` are as in
    `warmup.serving.run`.
    """

    command: Sequence[str]
    after: bool = False
    stdout_to_stderr: bool = False

    @property
    def label(self) -> str:
        return f"{printable(self.command[0])!r}, which was read as a program to run,"

    def refuses(self, request: BuildRequest) -> frozenset[str]:
        """Return the options of models but ``freezing``, and what other processes measure with."""
        runner = request.runner
        others = set() if isinstance(runner, ThisProcess) else {runner.label.removeprefix("--")}
        refused = {"force", "dry_run", "rows_from", "budget", *others}
        return OF_MODELS - {"freezing"} | refused

    def build(self, request: BuildRequest, observer: Observer) -> BuildReport:
        """Run the program, and tune what is left when it has ended.

        That the table does not fit shows when the command has ended: no process could be recorded.
        """
        started, path, options = time.monotonic(), request.path, request.options
        check_out(path)
        seconds_to_wait(options.wait_for_quiet)
        before = frozenset(read(path).rows) if path.exists() else frozenset()
        ran, origin, regions = self._run(path, options)
        rows = read_folded(path).rows if path.exists() else {}
        asked_for = {*ran.audit.hits, *ran.audit.tuned}
        again = [
            key
            for key, row in rows.items()
            if key in asked_for and row.evidence.is_unstable and kind_of(key).rebuild is not None
        ]
        problems = tuple(
            MissedProblem(miss.key, kind_of(miss.key).name, miss.reason, miss.count)
            for miss in ran.audit.misses
            if miss.key not in rows or rows[miss.key].untrusted is not None
        )
        observer.program_ended(ran, len(problems), len(again))
        _check_recorded(ran, path, has_problems=bool(problems))
        program = ProgramRun(ran, before, rows, problems, collected=self.after)
        if not (problems or again or regions) or origin is None:
            if path.exists():
                table = read(path)
            else:
                setup = find_setup(options.device, options)
                table = origin or open_table(path, setup, force=False)[0]
            seconds = time.monotonic() - started
            return BuildReport(
                path=path, table=table, digest=digest_of(table), seconds=seconds, program=program
            )
        source = ProblemsSource(problems, again=again, regions=regions)
        rest = replace(request, source=source, options=replace(options, freezing=None))
        try:
            with _threads_of(origin):
                report = build(rest, observer)
        except NothingRecordedError as error:
            if not self.after:
                raise
            raise NothingRecordedError(
                str(error), "give the command without --set after=yes"
            ) from error
        return replace(report, program=replace(program, has_rest=True))

    def _run(
        self, path: Path, options: BuildOptions
    ) -> tuple[RunReport, Table | None, Sequence[RegionQuestion]]:
        """Run the program; return its audit, the table of its processes, and the regions left."""
        with temporary_folder("warmup-build-") as folder:  # the program's processes share it
            order = RecordingOrder(
                out=str(path.absolute()),
                folder=str(folder),
                session=secrets.token_hex(8),
                after=self.after,
                options=options.of_policy(),
                device=options.device,
                search=str(parse_budget(options.search, None).search),
                wait_for_quiet=options.wait_for_quiet,
            )
            settings = {
                _CACHE_OF_ENGINE: str(folder / "engine"),
                RECORDING_VARIABLE: order.to_json(),
            }
            if options.freezing is not None:
                settings["WARMUP_FREEZING"] = str(int(options.freezing))
            ran = run_with(self.command, settings, stdout_to_stderr=self.stdout_to_stderr)
            origin = read(order.origin) if order.origin.exists() else None
            return ran, origin, () if origin is None else read_regions(order.regions)

    def open(self, _context: BuildContext) -> Work:
        """Raise a BuildError: a program is measured by its own processes."""
        raise BuildError("a program runs in processes of its own", "call `build` with the request")


def _check_recorded(ran: RunReport, path: Path, *, has_problems: bool) -> None:
    if ran.audit.mismatch and not ran.audit.runs:
        raise BuildError(
            f"nothing was recorded, and nothing was written to {path}",
            "the line `no table in process` above says why, and what to do",
        )
    if ran.audit.hits or ran.audit.tuned or has_problems or ran.exit_code:
        return
    if uncovered := selections(ran.audit.uncovered):
        raise NothingRecordedError.of_uncovered(uncovered)
    raise NothingRecordedError(
        "no process of the command asked inductor for a choice",
        "see that it compiles with torch.compile; a CPU's linears ask only where their weights "
        "are frozen: --freezing, under torch.no_grad()",
    )


@contextlib.contextmanager
def _threads_of(origin: Table) -> Iterator[None]:
    """Compute with as many threads as the program did: on a CPU they are part of the device."""
    import torch

    own, threads = torch.get_num_threads(), origin.provenance.runtime.device.threads
    torch.set_num_threads(threads or own)
    try:
        yield
    finally:
        torch.set_num_threads(own)
