"""`record`: lets the questions of this process become rows of a table, until the process ends.

`warmup build -- COMMAND` asks every Python process of the command for it, by a `RecordingOrder`.
"""

from __future__ import annotations

import os
import warnings
from functools import partial
from pathlib import Path

from warmup.core.errors import ContradictionWarning
from warmup.core.events import Emitter, EventName, FieldValue, JsonLinesSink, Tally
from warmup.core.file_lock import Turn
from warmup.core.method import Search
from warmup.core.notices import print_notice
from warmup.core.recording_order import RecordingOrder
from warmup.core.runtime import compare_runtimes
from warmup.serving.handle import Handle, install_lock, installed, register
from warmup.serving.install_settings import RecordingSettings
from warmup.serving.notices import Notices
from warmup.serving.process_watch import ProcessWatch
from warmup.serving.recording_lookup import RecordingLookup
from warmup.table import Table
from warmup.table.cache_tags import cache_tag
from warmup.table.codec import digest_of
from warmup.table.lookup import Lookup, OnMiss
from warmup.table.policy import PolicyOptions, options_served
from warmup.table.store import add_rows
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.report import Observer
from warmup.tuning.setup import (
    BuildSetup,
    find_setup,
    open_table,
    seconds_to_wait,
    watcher_of,
)


def record(order: RecordingOrder, *, freezes: bool) -> Handle:
    """Return the handle of the recording, which begins with the first call in this process.

    Inductor's questions are measured and written to the table of *order* as they are asked, or with
    ``after`` written to its log as misses. The events go to ``WARMUP_AUDIT_LOG``. Weights of the
    program are frozen where the program freezes them itself, or *freezes* says so.

    Raises:
        SettingsError: the device, its compiler or an option cannot be used.
        TableError: the table cannot be read or written, or is for another device, runtime or
            policy; or other processes of the command have another runtime than this one.
        AdapterError: this torch is not supported.
    """
    with install_lock:
        current = installed()
        return _begin(order, freezes=freezes) if current is None else current.shared()


class _Waiting(Observer):
    """Says on stderr that a measurement waits: the program seems to hang meanwhile."""

    def waiting_started(self, reason: str, seconds: float) -> None:
        """Print *reason*, and for how long the measurement waits at most."""
        print_notice(f"build: {reason}: waiting up to {seconds:.0f} s to measure")


def _begin(order: RecordingOrder, *, freezes: bool) -> Handle:
    setup = find_setup(order.device, PolicyOptions(**order.options))
    table, _ = open_table(Path(order.out), setup, force=False)
    add_rows(order.origin, table.provenance, table.policy, {})
    digest = digest_of(table)
    tally = Tally()
    log = JsonLinesSink(Path(os.environ.get("WARMUP_AUDIT_LOG") or order.log))
    log.open()
    common: dict[str, FieldValue] = {"digest": digest[:16]}
    if (rank := os.environ.get("RANK")) is not None:
        common["rank"] = rank
    emitter = Emitter([tally, log], common)
    notices = Notices(
        order.out,
        is_strict=False,
        is_quiet=False,
        bypassed=lambda cause, said: emitter.emit(EventName.BYPASSED, cause=cause, said=said),
    )
    watch = ProcessWatch(notices)  # no sink: a miss is what a recording is for
    # The rows are made under the program's own options, which the table has nothing to say about.
    warnings.filterwarnings("ignore", category=ContradictionWarning)
    try:
        lookup = (_collecting if order.after else _measuring)(order, setup, table, emitter)
        tag = f"{cache_tag(digest, tunes=lookup.tunes)}-{order.session}"
        functions, is_compiling = setup.inductor.earlier_compiles()
        options = options_served(table.policy, freezes=freezes)
        attachment = setup.inductor.attach(lookup, options, tag, observer=watch, quiet=True)
    except BaseException:
        log.close()
        raise
    here, on_miss = setup.runtime, lookup.on_miss.value
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
    settings = RecordingSettings(
        digest=digest,
        on_miss=on_miss,
        uncovered=lookup.on_uncovered.value,
        device=here.device.name,
        audit_log=str(log.path),
        bundle="",
        freezes=freezes,
        pads_model=False,
    )
    handle = Handle(table, digest, lookup, tally, attachment, settings, watch, _file=log)
    register(handle)
    notices.late(functions, is_compiling=is_compiling)
    return handle


def _collecting(_order: RecordingOrder, setup: BuildSetup, table: Table, out: Emitter) -> Lookup:
    """Return a lookup that reports every question without a row."""
    policy, differing = table.policy, compare_runtimes(table.provenance.runtime, setup.runtime)
    return Lookup(
        table.rows,
        OnMiss.FALLBACK,
        out,
        differing,
        searches=policy.searches,
    )


def _measuring(order: RecordingOrder, setup: BuildSetup, table: Table, out: Emitter) -> Lookup:
    """Return a lookup that measures every question without a row, and writes the row."""
    from warmup.tuning.recorded_regions import write_region
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
        on_miss=OnMiss.TUNE,
        emitter=out,
        tuner=tuner,
        on_tuned=progress.save,
        search=search,
        retunes=progress.must_retune,
        searches=policy.searches,
        progress=progress,
        turn=Turn(order.turn),
        later=partial(write_region, order.regions, tuner=tuner),
        apart=tuner.apart,
    )
