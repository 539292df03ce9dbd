"""`Handle`: the table that is installed in this process, until the handle is closed."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from warmup.core.errors import SettingsError
from warmup.core.events import EventName, JsonLinesSink, Tally, logger
from warmup.core.runtime import Runtime
from warmup.keys.registry import kind_of
from warmup.models.padding.prepare import Prepared
from warmup.serving.install_settings import InstallSettings
from warmup.serving.process_watch import ProcessWatch, is_logged
from warmup.serving.report import Report
from warmup.serving.settling import Settling
from warmup.table import Table
from warmup.table.lookup import Lookup

if TYPE_CHECKING:
    from warmup.inductor.adapter import Attachment
    from warmup.serving.unpack_bundle import UnpackedBundle
    from warmup.table.discovery import FoundTable

_installed: list[Handle] = []
install_lock = threading.RLock()  # reentrant: what is imported meanwhile may install as well


def installed() -> Handle | None:
    """Return the handle of the table that is installed in this process; None without a table."""
    return _installed[-1] if _installed else None


def register(handle: Handle) -> None:
    """Make *handle* that of the installed table; `install` calls this under `install_lock`."""
    _installed.append(handle)


@dataclass
class Handle(AbstractContextManager["Handle"]):
    """An installed table. Close it, or use it as a context manager, to restore inductor.

    Installs of the same table with the same settings share a handle, and the last `close` ends it.
    ``prepared`` says which weights of the model were padded, None without a model; ``bundle``
    whether the bundle was unpacked, None without a bundle. ``refused`` is why nothing of the table
    is applied, which is for another device or runtime; None where it is installed.
    """

    table: Table
    digest: str
    _lookup: Lookup
    _tally: Tally
    _attachment: Attachment | None
    _settings: InstallSettings
    _watch: ProcessWatch
    prepared: Prepared | None = None
    bundle: UnpackedBundle | None = None
    refused: str | None = field(default=None, init=False)
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
        asked = tally.hits.keys() | tally.misses.keys()
        return Report(
            digest=self.digest,
            mismatch=int(self.refused is not None),
            hits=dict(tally.hits),
            misses=dict(tally.misses),
            miss_reasons=dict(tally.miss_reasons),
            uncovered=dict(tally.uncovered),
            tuned=tally.tuned,
            from_cache=tally.cached_graphs,
            cached_decisions=tally.cached_decisions,
            cached_misses=tally.cached_misses,
            foreign=dict(tally.foreign),
            compiles=self._watch.compiles,
            uncompiled=dict(tally.uncompiled),
            advised=tuple(tally.advised),
            changed=dict(tally.changed),
            compile_seconds=self._watch.compile_seconds(),
            unused=tuple(
                sorted(key for key in self.table.rows.keys() - asked if kind_of(key).is_asked)
            ),
        )

    def _share(self, asked: InstallSettings) -> Handle:
        """Return this handle for another install, which has to close it as well."""
        if difference := self._settings.difference(asked):
            raise SettingsError(
                f"a table is installed already ({difference})", "close() its handle first"
            )
        logger.info("the table %s is installed already, with these settings", self.digest[:16])
        return self.shared()

    def shared(self) -> Handle:
        """Return this handle for one more install, which has to close it as well."""
        self._installs += 1
        return self

    def close(self) -> None:
        """Restore inductor and emit the summary, once each `install` of this handle is closed.

        A compile that another thread has under way goes on without the table, and what it had
        decided is counted. Closing a handle that has ended is fine.
        """
        with install_lock:
            self._installs -= 1
            ends = self._installs <= 0 and self._retire()
        if ends:
            self._finish()

    def _end(self) -> None:
        """Close the handle, however many installs share it."""
        with install_lock:
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
        if self._attachment is not None:
            self._attachment.detach()
        if os.getpid() == self._owner:  # a forked child has a copy of its parent's counts
            report = self.report()
            self._watch.close(
                is_silent=report.is_silent and not report.mismatch, uncompiled=report.uncompiled
            )
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
        """Log one sentence: the table, its rows, the device, and what is not in use."""
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
