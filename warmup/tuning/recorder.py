"""`record`: lets the questions of this process become rows of a table, until the process ends."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from torch import nn

from warmup.core.device import compare_runtimes
from warmup.core.errors import ContradictionWarning, MissReason
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
)
from warmup.core.files import DeviceLock
from warmup.core.method import Search, read_flag
from warmup.core.processes import RecordingOrder, order_in_environment
from warmup.core.rows import Winner
from warmup.core.trial import trial_from_json, trial_to_json
from warmup.keys.kind import Problem, ProblemOfKey
from warmup.keys.question import Question, RegionQuestion
from warmup.models.model_target import LoadedModel
from warmup.serving.handle import (
    Handle,
    InstallSettings,
    ProcessWatch,
    emitter_for,
    install_lock,
    installed,
    register,
)
from warmup.table.codec import digest_of
from warmup.table.lookup import Lookup, cache_tag
from warmup.table.schema import OnMiss, PolicyOptions, Table, options_served
from warmup.table.store import TableWriter
from warmup.tuning.bucket_compiler import BucketCompiler, measure_regions
from warmup.tuning.build import (
    find_setup,
    open_table,
    seconds_to_wait,
    watcher_of,
)
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.report import Observer
from warmup.tuning.request import BuildSetup
from warmup.tuning.trials import WaitingQuestion, variants_trial
from warmup.tuning.tuner import Tuner

# `RecordingLookup`: the lookup of a process whose questions become the rows of a table.


@dataclass(kw_only=True)
class RecordingLookup(Lookup):
    """A lookup that measures what has no row, and takes the rows that other processes write.

    A question that could not be measured is reported as a miss, and is tuned when the program has
    ended; ``later`` keeps a question whose region can be measured only then. A key of whose row the
    program does not fuse what the region alone fused is put into ``apart``, which the tuner
    measures without fusing, and is measured again when it is next asked.
    """

    progress: Progress
    device_lock: DeviceLock
    later: Callable[[RegionQuestion], None]
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
            known = self._row_of_another(question)
            winner = known or super().measure(question)
            if known is None and isinstance(question, RegionQuestion) and question.region:
                self.later(question)
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
        """Take the rows of the table on disk, if it has changed; return whether it had."""
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
        lookup = (_collecting if order.after else _measuring)(order, setup, table, emitter)
        tag = f"{cache_tag(digest, tunes=lookup.measures)}-{order.session}"
        functions, is_compiling = setup.inductor.earlier_compiles()
        options = options_served(table.policy, freezes=freezes)
        attachment = setup.inductor.attach(lookup, options, tag, observer=watch, quiet=True)
    except BaseException:
        log.close()
        raise
    here, on_miss = setup.runtime, "tune" if lookup.measures else lookup.on_miss.value
    mismatches = compare_runtimes(table.provenance.runtime, here)
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
        mismatches=[str(mismatch) for mismatch in mismatches],
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


def _collecting(_order: RecordingOrder, setup: BuildSetup, table: Table, out: Emitter) -> Lookup:
    policy, differing = table.policy, compare_runtimes(table.provenance.runtime, setup.runtime)
    return Lookup(
        table.rows,
        OnMiss.FALLBACK,
        out,
        differing,
        searches=policy.searches,
    )


def _measuring(order: RecordingOrder, setup: BuildSetup, table: Table, out: Emitter) -> Lookup:
    from warmup.tuning.tuner import make_tuner

    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # torch's own
    tuner = make_tuner(setup.policy, setup.device)
    watcher = watcher_of(_Waiting(), setup)
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
    policy = table.policy
    return RecordingLookup(
        rows=table.rows,
        on_miss=OnMiss.FALLBACK,
        emitter=out,
        tuner=tuner,
        on_tuned=progress.save,
        search=search,
        retunes=progress.must_retune,
        searches=policy.searches,
        progress=progress,
        device_lock=DeviceLock(order.turn),
        later=partial(write_region, order.regions, tuner=tuner),
        apart=tuner.apart,
    )


# Regions of a recorded program: written while it compiles, and measured when it has ended.

_REGION_MODEL: Final = "region"


def write_region(path: Path, question: RegionQuestion, tuner: Tuner) -> None:
    """Append *question*, which has a region, to the file *path*."""
    trial = variants_trial(question, tuner.device, tuner.method, tuner.tolerance, seed=tuner.seed)
    line = {"trial": trial_to_json(trial), "keys": sorted(question.keys_in_region)}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_regions(path: Path) -> tuple[RegionQuestion, ...]:
    """Return the questions in the file *path*, each key once; none where there is no file.

    A line that a killed process left unfinished is skipped: its question is a miss, as in the log.
    """
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


def measure_recorded(
    questions: Sequence[RegionQuestion], setup: BuildSetup, progress: Progress, tuner: Tuner
) -> None:
    """Measure each of *questions* as a build does, and write its row; tune GEMMs on the way."""
    compiler = BucketCompiler(
        setup=setup,
        model=LoadedModel(
            nn.Identity(), None, _REGION_MODEL
        ),  # a region is compiled without the model
        progress=progress,
        tuner=tuner,
    )
    for question in questions:
        tuner.region_questions.keep(WaitingQuestion(question, (), is_disturbed=False))
    measure_regions(compiler)
