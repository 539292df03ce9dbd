"""`ProgramSource`: a table of what a user's program asks; `record`, in each of its processes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from warmup.core.device import compare_runtimes
from warmup.core.errors import BuildError, ContradictionWarning, MissReason, NothingRecordedError
from warmup.core.events import (
    Emitter,
    EventName,
    Hit,
    HookEvent,
    JsonLinesSink,
    Missed,
    Scheduled,
    Tally,
    print_notice,
    selections,
)
from warmup.core.files import DeviceLock, temporary_folder
from warmup.core.processes import RECORDING_VARIABLE, RecordingOrder, order_in_environment
from warmup.core.rows import Search, Winner, read_flag
from warmup.core.text import printable
from warmup.core.trial import trial_from_json, trial_to_json
from warmup.keys.kind import Problem, ProblemOfKey
from warmup.keys.question import Question, RegionQuestion
from warmup.keys.registry import kind_of
from warmup.serving.audit import MissedProblem
from warmup.serving.handle import (
    Handle,
    InstallSettings,
    ProcessWatch,
    emitter_for,
    install_lock,
    installed,
    register,
)
from warmup.serving.run import RunReport, run_with
from warmup.table.codec import digest_of
from warmup.table.lookup import Lookup, cache_tag
from warmup.table.schema import OnMiss, PolicyOptions, Table, options_served
from warmup.table.store import TableWriter, read, read_folded
from warmup.tuning.build import (
    OF_MODELS,
    BuildContext,
    BuildOptions,
    BuildRequest,
    BuildSetup,
    ThisProcess,
    Work,
    build,
    check_out,
    find_setup,
    open_table,
    seconds_to_wait,
)
from warmup.tuning.problems import ProblemsSource
from warmup.tuning.progress import Progress, Revisit, parse_budget
from warmup.tuning.report import BuildReport, Observer, ProgramRun
from warmup.tuning.trials import variants_trial
from warmup.tuning.tuner import Tuner, make_tuner

# `RecordingLookup`: the lookup of a process whose questions become the rows of a table.


@dataclass(kw_only=True)
class RecordingLookup(Lookup):
    """A lookup that measures what has no row, and takes the rows that other processes write.

    A question that could not be measured is reported as a miss, and is tuned when the program has
    ended. A key of whose row the program does not fuse what the region alone fused is put into
    ``apart``, which the tuner measures without fusing, and is measured again when it is next asked.
    """

    progress: Progress
    device_lock: DeviceLock
    apart: set[str] = field(default_factory=set)

    def find(self, problem: Problem) -> Winner | MissReason:
        answer = super().find(problem)
        if isinstance(answer, Winner) or not self._refresh():
            return answer
        return super().find(problem)

    def emit(self, event: HookEvent) -> None:
        super().emit(event)
        if not isinstance(event, Scheduled) or event.key in self.apart:
            return
        if event.expected and not event.found:
            self.apart.add(event.key)
            self.progress.measure_again([event.key])
            with self._lock:
                self._tuned_rows.pop(event.key, None)

    def measure(self, question: Question) -> Winner | None:
        with self.device_lock.taken():
            if not question.makes_row:
                return super().measure(question)
            winner = self._row_of_another(question) or super().measure(question)
        if winner is None:
            self.emit(Missed(question.problem.key, MissReason.NOT_IN_TABLE, str(question.library)))
        return winner

    def _row_of_another(self, question: Question) -> Winner | None:
        if not self._refresh():
            return None
        winner = super().find(question.problem)
        if not isinstance(winner, Winner) or not question.offers(winner):
            return None
        self.emit(Hit(question.problem.key, str(winner)))
        return winner

    def _refresh(self) -> bool:
        if not self.progress.refresh():
            return False
        self.rows = self.progress.rows
        return True


def record(*, freezing: bool | None = None) -> Handle:
    """Return the handle of the recording, which begins with the first call in this process.

    The order of the environment (`RecordingOrder`) says which table gets the rows; with ``after``
    the questions are written to its log as misses. Events go to ``WARMUP_AUDIT_LOG``. Weights are
    frozen where the program freezes them, or *freezing* or ``WARMUP_FREEZING=1`` says so.

    Raises:
        SettingsError: the device, its compiler or an option cannot be used.
        TableError: the table cannot be read or written, or is of another device or policy.
        AdapterError: this torch is not supported.
    """
    order = order_in_environment()
    assert order is not None
    freezes = read_flag(freezing, "WARMUP_FREEZING")
    with install_lock:
        current = installed()
        return _begin(order, freezes=freezes) if current is None else current.shared()


class _Waiting(Observer):
    """Says on stderr that a measurement waits: the program seems to hang meanwhile."""

    def waiting_started(self, reason: str, seconds: float) -> None:
        print_notice(f"build: {reason}: waiting up to {seconds:.0f} s to measure")


def _begin(order: RecordingOrder, *, freezes: bool) -> Handle:
    setup = find_setup(order.device, PolicyOptions(**order.options))
    table, _ = open_table(Path(order.out), setup, force=False)
    TableWriter(order.origin).add(table.provenance, table.policy, {})
    digest = digest_of(table)
    tally = Tally()
    log = JsonLinesSink(Path(os.environ.get("WARMUP_AUDIT_LOG") or order.log))
    log.open()
    emitter = emitter_for(digest, [tally, log])
    # No sink: a miss is what a recording is for.
    watch = ProcessWatch(order.out, emitter, OnMiss.FALLBACK, is_quiet=False)
    # The rows are made under the program's own options, which the table has nothing to say about.
    warnings.filterwarnings("ignore", category=ContradictionWarning)
    try:
        differing = compare_runtimes(table.provenance.runtime, setup.runtime)
        lookup = Lookup(
            *(table.rows, OnMiss.FALLBACK, emitter, differing), searches=table.policy.searches
        )
        if not order.after:
            lookup = _measuring(order, setup, table, emitter)
        tag = f"{cache_tag(digest, tunes=lookup.measures)}-{order.session}"
        functions, is_compiling = setup.inductor.earlier_compiles()
        options = options_served(table.policy, freezes=freezes)
        attachment = setup.inductor.attach(lookup, options, tag, observer=watch, quiet=True)
    except BaseException:
        log.close()
        raise
    here, on_miss = setup.runtime, "tune" if lookup.measures else lookup.on_miss.value
    emitter.emit(
        EventName.INSTALLED,
        paths=[order.out],
        table=digest,
        rows=len(table.rows),
        on_miss=on_miss,
        uncovered=lookup.on_uncovered.value,
        device=here.device.name,
        torch=here.torch,
        triton=here.triton,
        mismatches=[*map(str, differing)],
        bundle=None,
        bundle_refused=None,
    )
    settings = InstallSettings(
        digest=digest,
        on_miss=on_miss,
        uncovered=lookup.on_uncovered.value,
        device=here.device.name,
        audit_log=str(log.path),
        bundle="",
        freezes=freezes,
        pads_model=False,
        is_recording=True,
    )
    handle = Handle(table, digest, lookup, tally, attachment, settings, watch, _file=log)
    register(handle)
    watch.late(functions, is_compiling=is_compiling)
    return handle


def _measuring(order: RecordingOrder, setup: BuildSetup, table: Table, out: Emitter) -> Lookup:
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # torch's own
    tuner = make_tuner(setup.policy, setup.device)
    tuner.region_questions.later = partial(write_region, order.regions, tuner=tuner)
    watcher = _Waiting()
    tuner.watch.start(seconds_to_wait(order.wait_for_quiet), watcher.waiting_started)
    search = Search(order.search)
    progress = Progress(
        path=Path(order.out),
        table=table,
        replaces=False,
        observer=watcher,
        can_search=setup.can_search,
        given_up=tuner.rows.not_tuned,
        measured_peaks=tuner.bounds.peaks,
        revisit=Revisit(search=search),
    )
    return RecordingLookup(
        rows=table.rows,
        on_miss=OnMiss.FALLBACK,
        emitter=out,
        tuner=tuner,
        on_tuned=progress.save,
        search=search,
        retunes=progress.must_retune,
        searches=table.policy.searches,
        progress=progress,
        device_lock=DeviceLock(order.turn),
        apart=tuner.apart,
    )


# Regions of a recorded program: written while it compiles, and measured when it has ended.


def write_region(path: Path, question: RegionQuestion, tuner: Tuner) -> None:
    """Append *question*, which has a region, to the file *path*."""
    trial = variants_trial(question, tuner.device, tuner.method, tuner.tolerance, seed=tuner.seed)
    line = {"trial": trial_to_json(trial), "keys": sorted(question.keys_in_region)}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_regions(path: Path) -> tuple[RegionQuestion, ...]:
    """Return the questions in the file *path*, each key once; none where there is no file."""
    # A line that a killed process left unfinished is skipped: its question is a miss, as in the
    # log.
    questions: dict[str, RegionQuestion] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        trial = trial_from_json(document["trial"])
        variants = tuple(candidate.winner for candidate in trial.candidates)
        keys = frozenset(document["keys"])
        problem = ProblemOfKey(trial.key)
        questions[trial.key] = RegionQuestion(problem, variants, trial.region, keys)
    return tuple(questions.values())


# The variable of an engine's own cache of graphs. Graphs from a cache ask nothing.
_CACHE_OF_ENGINE: Final = "VLLM_CACHE_ROOT"


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """A program that runs once, with `warmup.tuning.program` in each of its processes.

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
