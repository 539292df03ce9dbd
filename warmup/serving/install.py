"""`install`: makes inductor take its decisions from a table, until the `Handle` is closed."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec

from warmup.core.errors import SettingsError
from warmup.core.events import (
    Emitter,
    EventName,
    FieldValue,
    JsonLinesSink,
    Sink,
    Tally,
    log_event,
    logger,
)
from warmup.core.flags import read_flag
from warmup.core.runtime import Mismatch, Runtime, compare_runtimes
from warmup.keys.registry import kind_of
from warmup.models.padding.prepare import Prepared, pad_by_rows, paddings, refusal_of
from warmup.serving.admission import admit, find_table
from warmup.serving.install_settings import InstallSettings, absolute_path
from warmup.serving.notices import Notices
from warmup.serving.process_watch import ProcessWatch, is_logged
from warmup.serving.report import Report
from warmup.serving.settling import Settling
from warmup.table import Policy, Table
from warmup.table.codec import digest_of
from warmup.table.lookup import Lookup, OnMiss, Uncovered, cache_tag

if TYPE_CHECKING:
    from torch import nn

    from warmup.inductor.adapter import Attachment
    from warmup.serving.unpack_bundle import UnpackedBundle
    from warmup.table.store import FoundTable
    from warmup.tuning.tuner import Tuner


_Parameters = ParamSpec("_Parameters")
_installed: list[Handle] = []
_install_lock = threading.RLock()  # reentrant: what is imported meanwhile may install as well


def installed() -> Handle | None:
    """Return the handle of the table that is installed in this process; None without a table."""
    return _installed[-1] if _installed else None


@dataclass
class Handle(AbstractContextManager["Handle"]):
    """An installed table. Close it, or use it as a context manager, to restore inductor.

    Installs of the same table with the same settings share a handle, and the last `close` ends it.
    ``prepared`` says which weights of the model were padded, None without a model; ``bundle``
    whether the bundle was unpacked, None without a bundle.
    """

    table: Table
    digest: str
    _lookup: Lookup
    _tally: Tally
    _attachment: Attachment
    _settings: InstallSettings
    _watch: ProcessWatch
    prepared: Prepared | None = None
    bundle: UnpackedBundle | None = None
    _file: JsonLinesSink | None = None
    _installs: int = 1
    _is_closed: bool = field(default=False)
    _owner: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self._watch.settling = Settling(partial(self._log_counts, "settled: "), is_wanted=is_logged)
        atexit.register(self._end)

    def report(self) -> Report:
        """Return the counts so far."""
        tally = self._tally
        return Report(
            digest=self.digest,
            hits=dict(tally.hits),
            misses=dict(tally.misses),
            miss_reasons=dict(tally.miss_reasons),
            uncovered=dict(tally.uncovered),
            tuned=tally.tuned,
            from_cache=tally.cached_graphs,
            cached_decisions=tally.cached_decisions,
            cached_misses=tally.cached_misses,
            foreign=dict(tally.foreign),
            unused=tuple(
                sorted(
                    key
                    for key in self.table.rows.keys() - tally.hits.keys() - tally.misses.keys()
                    if kind_of(key).is_asked
                )
            ),
        )

    def _share(self, asked: InstallSettings) -> Handle:
        """Return this handle for another install, which has to close it as well."""
        if difference := self._settings.difference(asked):
            raise SettingsError(
                f"a table is installed already ({difference})", "close() its handle first"
            )
        self._installs += 1
        logger.info("the table %s is installed already, with these settings", self.digest[:16])
        return self

    def close(self) -> None:
        """Restore inductor and emit the summary, once each `install` of this handle is closed.

        A compile that another thread has under way goes on without the table, and what it had
        decided is counted. Closing a handle that has ended is fine.
        """
        with _install_lock:
            self._installs -= 1
            ends = self._installs <= 0 and self._retire()
        if ends:
            self._finish()

    def _end(self) -> None:
        """Close the handle, however many installs share it."""
        with _install_lock:
            ends = self._retire()
        if ends:
            self._finish()

    def _retire(self) -> bool:
        """Make room for another install; whether this was the first call."""
        if self._is_closed:
            return False
        self._is_closed = True
        _installed.remove(self)
        return True

    def _finish(self) -> None:
        self._attachment.detach()
        if os.getpid() == self._owner:  # a forked child has a copy of its parent's counts
            self._watch.close(is_silent=self.report().is_silent)
            self._emit_summary()
        self._lookup.close()
        if self._file is not None:
            self._file.close()
        atexit.unregister(self._end)

    def _emit_summary(self) -> None:
        report = self.report()
        self._lookup.emitter.emit(
            EventName.SUMMARY,
            hits=sum(report.hits.values()),
            misses=sum(report.misses.values()),
            uncovered=sum(report.uncovered.values()),
            tuned=report.tuned,
            from_cache=report.from_cache,
            cached_decisions=report.cached_decisions,
            cached_misses=report.cached_misses,
            foreign=sum(report.foreign.values()),
            unused=len(report.unused),
            silent=report.is_silent,
            compiled=None if self.bundle is None else len(self.bundle.compiled_besides()),
        )
        self._log_counts()

    def _log_counts(self, when: str = "") -> None:
        report = self.report()
        logger.log(logging.INFO if report.is_clean else logging.WARNING, "%s%s", when, report)

    def _log_installed(self, found: FoundTable, here: Runtime) -> None:
        off = ["audit log"] if self._file is None else []
        off += ["bundle"] if self.bundle is None or self.bundle.refused is not None else []
        off += ["padded weights"] if self.prepared is None or not self.prepared.padded else []
        logger.info(
            "installed %s, digest %s: %d rows for %s; on a miss: %s; off: %s",
            found.origin or "a loaded table",
            self.digest[:12],
            len(self.table.rows),
            here,
            self._lookup.on_miss,
            ", ".join(off) or "nothing",
        )

    def settle(self) -> None:
        """Log the counts now instead of some seconds later, if there were events since then."""
        if self._watch.settling is not None:
            self._watch.settling.settle()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def outside(self, reason: str, said: str, calls: int) -> None:
        """Emit that no artifact served a call, the *calls*-th such call; nothing once closed.

        *said* is the text for people, *reason* the name of an `UncompiledReason` in lower case.
        """
        if not self._is_closed:
            self._lookup.emitter.emit(EventName.OUTSIDE, reason=reason, said=said, calls=calls)


def _one_at_a_time(function: Callable[_Parameters, Handle]) -> Callable[_Parameters, Handle]:
    """Return *function* with a lock: a second thread waits, and finds what the first installed."""

    @functools.wraps(function)
    def wait_and_call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Handle:
        with _install_lock:
            return function(*args, **kwargs)

    return wait_and_call


@_one_at_a_time
def install(
    table: str | os.PathLike[str] | Table | None = None,
    *,
    on_miss: str = "fallback",
    uncovered: str = "count",
    audit_log: str | os.PathLike[str] | None = None,
    device: str = "auto",
    model: nn.Module | None = None,
    bundle: str | os.PathLike[str] | None = None,
    allow_mismatch: bool | None = None,
    quiet: bool | None = None,
    log_events: bool | None = None,
) -> Handle:
    """Make inductor take its decisions from *table*, in every thread, until the handle is closed.

    *table* is a path, a loaded table, or None: then ``WARMUP_TABLE``, or all tables for this device
    in the first of ``./tables``, the user data folder and the package that has any. *on_miss* is
    ``fallback`` (use the library kernel and count the miss), ``strict`` (raise a `MissError`, which
    torch wraps in its own error) or ``tune`` (measure; for development). *uncovered* decides about
    a measurement that no row covers: ``count`` it and let it run, or ``forbid`` it with an
    `UncoveredError` before it runs. Every event is appended to *audit_log*, or
    ``WARMUP_AUDIT_LOG``, as a JSON line, and logged too with *log_events*, or
    ``WARMUP_LOG_EVENTS=1``.

    A table for another device or runtime is refused. With *allow_mismatch*, or
    ``WARMUP_ALLOW_MISMATCH=1``, it is installed, and every lookup is a miss. What makes a table
    useless is printed on stderr, once in a process for each cause, and so is the first miss; not
    with *quiet*, or ``WARMUP_QUIET=1``.

    The weights of *model*, which is in eval mode and not compiled yet, are padded as the table
    says; see `warmup.prepare`. Without *model*, the rows for unpadded weights are used, and the log
    names at INFO which weights the table would pad. The kernels in *bundle*, a path, or
    ``WARMUP_BUNDLE``, are put into inductor's caches, so that they are not compiled here. A bundle
    that does not fit the table or this machine is ignored with a warning. A bundle is code: use
    only bundles that you would run.

    Every compile meanwhile runs under the table's inductor options. Options that decide what is
    measured replace the caller's own, also those of a mode. Other options of the caller's that
    contradict the table's are kept, with a warning and an event.

    A second call with the same table and settings, and no *model*, returns the same handle.

    Raises:
        SettingsError: another table, or this table with other settings, is installed; an argument
            cannot be used; *model* is in training mode, or padded already.
        TableError: the table is missing or damaged.
        TableMismatchError: the table is for another device or runtime.
        AdapterError: this torch is not supported.
    """
    from warmup.inductor import connect, start_workers

    if on_miss not in set(OnMiss):
        raise SettingsError(f"on_miss={on_miss!r}", f"use one of {', '.join(OnMiss)}")
    if uncovered not in set(Uncovered):
        raise SettingsError(f"uncovered={uncovered!r}", f"use one of {', '.join(Uncovered)}")
    start_workers(device)
    inductor = connect()
    here = inductor.runtime(device)
    found = find_table(table, here)
    digest = digest_of(found.table)
    settings = InstallSettings(
        digest=digest,
        on_miss=on_miss,
        uncovered=uncovered,
        device=here.device.name,
        audit_log=absolute_path(audit_log, "WARMUP_AUDIT_LOG"),
        bundle=absolute_path(bundle, "WARMUP_BUNDLE"),
        pads_model=model is not None,
    )
    if (current := installed()) is not None:
        return current._share(settings)  # noqa: SLF001  a class of this module
    for remark in found.remarks:
        logger.warning("%s", remark)
    mismatches = compare_runtimes(found.table.provenance.runtime, here)
    admit(found, here, mismatches, is_allowed=read_flag(allow_mismatch, "WARMUP_ALLOW_MISMATCH"))

    tally = Tally()
    file = _open_audit_log(audit_log)
    sinks: list[Sink] = [tally]
    sinks += [log_event] if read_flag(log_events, "WARMUP_LOG_EVENTS") else []
    sinks += [file] if file is not None else []
    common: dict[str, FieldValue] = {"digest": digest[:16]}
    rank = os.environ.get("RANK")
    if rank is not None:
        common["rank"] = rank
    emitter = Emitter(sinks, common)
    tuner = _make_tuner(found.table.policy, device) if on_miss == OnMiss.TUNE else None
    lookup = Lookup(
        found.table.rows, OnMiss(on_miss), emitter, mismatches, Uncovered(uncovered), tuner
    )
    notices = Notices(
        found.origin or "the table",
        is_strict=on_miss == OnMiss.STRICT,
        is_quiet=read_flag(quiet, "WARMUP_QUIET"),
        bypassed=lambda cause, said: emitter.emit(EventName.BYPASSED, cause=cause, said=said),
    )
    watch = ProcessWatch(notices)
    sinks.append(watch)
    try:
        prepared = _prepare(model, found.table, mismatches)
        unpacked = _unpack(bundle, digest, here, device)
        tag = cache_tag(digest, tunes=lookup.tunes)
        functions, is_compiling = inductor.earlier_compiles()
        attachment = inductor.attach(lookup, found.table.policy.options, tag, observer=watch)
    except BaseException:
        if file is not None:
            file.close()
        raise
    emitter.emit(
        EventName.INSTALLED,
        paths=[str(path) for path in found.paths],
        table=digest,
        rows=len(found.table.rows),
        on_miss=on_miss,
        uncovered=uncovered,
        device=here.device.name,
        torch=here.torch,
        mismatches=[str(mismatch) for mismatch in mismatches],
        bundle=None if unpacked is None else str(unpacked.path),
        bundle_refused=None if unpacked is None else unpacked.refused,
    )
    handle = Handle(
        found.table, digest, lookup, tally, attachment, settings, watch, prepared, unpacked, file
    )
    _installed.append(handle)
    handle._log_installed(found, here)  # noqa: SLF001  of the same module
    notices.late(functions, is_compiling=is_compiling)
    return handle


def _prepare(
    model: nn.Module | None, table: Table, mismatches: Sequence[Mismatch]
) -> Prepared | None:
    if model is not None:
        prepared = pad_by_rows(model, table.rows, refusal_of(mismatches))
        logger.info("%s", prepared)
        return prepared
    if agreed := paddings(table, mismatches):
        texts = dict.fromkeys(
            f"{structure.features} features to {padding}" for structure, padding in agreed.items()
        )
        logger.info(
            "weights stay unpadded; structures that install(table, model=model) would pad: %d (%s)",
            len(agreed),
            ", ".join(texts),
        )
    return None


def _unpack(
    named: str | os.PathLike[str] | None, digest: str, here: Runtime, device: str
) -> UnpackedBundle | None:
    path = named if named is not None else os.environ.get("WARMUP_BUNDLE")
    if not path:
        return None
    from warmup.inductor.machine import resolve_device
    from warmup.serving.unpack_bundle import unpack

    return unpack(path, digest, here, resolve_device(device))


def _make_tuner(policy: Policy, device: str) -> Tuner:
    from warmup.inductor.machine import resolve_device
    from warmup.tuning.tuner import make_tuner

    return make_tuner(policy, resolve_device(device))


def _open_audit_log(named: str | os.PathLike[str] | None) -> JsonLinesSink | None:
    path = named if named is not None else os.environ.get("WARMUP_AUDIT_LOG")
    if not path:
        return None
    sink = JsonLinesSink(Path(path))
    sink.open()
    return sink
