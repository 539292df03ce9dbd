"""`Handle`: the table that is installed in this process, until the handle is closed."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from warmup.core.events import (
    Emitter,
    EventName,
    JsonLinesSink,
    Sink,
    Tally,
    in_brackets,
    logger,
    selections,
)
from warmup.core.text import counted
from warmup.keys.registry import kind_of
from warmup.models.padding import Prepared
from warmup.serving.process_watch import IdleTimer, ProcessWatch, is_logged, what_was_compiled
from warmup.table.lookup import Lookup
from warmup.table.schema import Table

if TYPE_CHECKING:
    from warmup.inductor.adapter import Attachment
    from warmup.serving.unpack_bundle import UnpackedBundle


@dataclass(frozen=True, slots=True)
class InstallSettings:
    """What is equal in two calls of `install` that are one install. Paths are absolute, or empty.

    A call with a model is never the same install as another: it pads the weights of its model.
    """

    digest: str
    on_miss: str
    uncovered: str
    device: str
    audit_log: str
    bundle: str
    freezes: bool
    pads_model: bool
    is_recording: bool = False

    def difference(self, asked: InstallSettings) -> str:
        """Return the settings in which *asked* differs, as ``name: installed X, asked Y``.

        Empty when both are one install.
        """
        theirs = asdict(asked)
        differences = [
            f"{name}: installed {_shown(value)}, asked {_shown(theirs[name])}"
            for name, value in asdict(self).items()
            if value != theirs[name]
        ]
        if self.pads_model and asked.pads_model:
            differences.append("each install would pad a model")
        return "; ".join(differences)


def absolute_path(named: str | os.PathLike[str] | None, variable: str) -> str:
    """Return the path *named*, or else in the environment *variable*, absolute; empty for none."""
    path = named if named is not None else os.environ.get(variable)
    return str(Path(path).absolute()) if path else ""


def emitter_for(digest: str, sinks: list[Sink]) -> Emitter:
    """Return the emitter of a process that serves the table *digest*, or records into it."""
    rank = os.environ.get("RANK")
    ranked = {} if rank is None else {"rank": rank}
    return Emitter(sinks, {"digest": digest[:16], **ranked})


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text[:64] or "none"


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of one installed table so far.

    ``hits`` and ``misses`` count decisions by key, ``miss_reasons`` the misses by reason,
    ``uncovered`` decisions of no row kind, by site; ``tuned`` counts problems measured while a
    program is recorded. ``from_cache`` counts graphs that inductor loaded from its
    caches under this table's digest: they skip the lookups, so their cache entries carry the counts
    ``cached_decisions`` and ``cached_misses``, decisions without a row. ``foreign`` counts loaded
    graphs that were compiled under another table, by its digest, or ``none`` for no table; refused
    graphs are among them. ``unused`` are rows that inductor never asked for; rows for weights are
    no lookups, and not among them. ``mismatch`` is 1 where nothing of the table is applied, since
    it is for another device or runtime. ``compiles`` counts graphs that inductor compiled or loaded
    from its caches, ``compile_seconds`` is the time that threads spent on them, all threads
    together. ``uncompiled`` counts frames that torch.compile left uncompiled, whole or in a part,
    each with torch's reason, ``changed`` how often weights were changed that a frame had frozen.
    ``advised`` is what to do about the misses, by reason.
    """

    digest: str
    hits: Mapping[str, int]
    misses: Mapping[str, int]
    miss_reasons: Mapping[str, int]
    uncovered: Mapping[str, int]
    tuned: int
    from_cache: int
    cached_decisions: int
    cached_misses: int
    foreign: Mapping[str, int]
    unused: tuple[str, ...]
    mismatch: int = 0
    compiles: int = 0
    compile_seconds: float = 0.0
    uncompiled: Mapping[str, int] = field(default_factory=dict)
    advised: tuple[str, ...] = ()
    changed: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_silent(self) -> bool:
        """Whether nothing was looked up, no row kind was lacking, and no cached graph decided."""
        is_asked = self.hits or self.misses or self.tuned or selections(self.uncovered)
        return not (is_asked or self.cached_decisions)

    @property
    def is_clean(self) -> bool:
        """Whether the table was asked, rows answered each decision, and nothing was measured.

        No loaded graph is another table's either.
        """
        is_missed = self.misses or self.cached_misses or self.foreign
        return not (is_missed or self.uncovered or self.is_silent)

    def __str__(self) -> str:
        misses = sum(self.misses.values())
        text = (
            f"warmup {self.digest[:12]}: {counted(sum(self.hits.values()), 'hit')}, "
            f"{counted(misses, 'miss')}"
            f"{in_brackets(self.miss_reasons)}, "
            f"{sum(self.uncovered.values())} uncovered{in_brackets(self.uncovered)}, "
            f"{counted(self.from_cache, 'graph')} from cache "
            f"({counted(self.cached_decisions, 'decision')}"
            f"{f', {self.cached_misses} without a row' if self.cached_misses else ''}), "
            f"{counted(len(self.unused), 'row')} unused"
        )
        if self.foreign:
            count = sum(self.foreign.values())
            text += f", {counted(count, 'foreign graph')}{in_brackets(self.foreign)}"
        if self.uncompiled:
            frames = "; ".join(self.uncompiled)
            text += f", {counted(len(self.uncompiled), 'uncompiled frame')} ({frames})"
        if self.changed:
            again = counted(sum(self.changed.values()), "graph")
            text += f", {again} with changed weights ({'; '.join(self.changed)})"
        if self.tuned:
            text += f", {self.tuned} tuned here"
        if self.advised:
            text += f" [{'; '.join(self.advised)}]"
        if self.mismatch:
            text += " [MISMATCH: the table is for another device or runtime, and was not applied]"
        elif self.is_silent and self.foreign:
            text += " [SILENT: nothing was asked; the graphs that were loaded are not this table's]"
        elif self.is_silent:
            text += f" [SILENT: nothing was asked; {what_was_compiled(self.compiles)}]"
        return text


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
    is applied, which is for another device or runtime; None where it is installed. ``settings`` are
    those of its first install.
    """

    table: Table
    digest: str
    _lookup: Lookup
    _tally: Tally
    _attachment: Attachment | None
    settings: InstallSettings
    _watch: ProcessWatch
    prepared: Prepared | None = None
    bundle: UnpackedBundle | None = None
    refused: str | None = None
    _file: JsonLinesSink | None = None
    _installs: int = 1
    _is_closed: bool = field(default=False)
    _owner: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        report_counts = partial(self._log_counts, "settled: ")
        self._watch.idle_timer = IdleTimer(report_counts, is_wanted=is_logged)
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
            artifacts = None if self.bundle is None else len(self.bundle.compiled_besides())
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
                compiled=artifacts,
            )
            self._log_counts()
        self._lookup.close()
        if self._file is not None:
            self._file.close()
        atexit.unregister(self._end)

    def _log_counts(self, when: str = "") -> None:
        report = self.report()
        logger.log(logging.INFO if report.is_clean else logging.WARNING, "%s%s", when, report)

    def settle(self) -> None:
        """Log the counts now instead of some seconds later, if there were events since then."""
        if self._watch.idle_timer is not None:
            self._watch.idle_timer.report_now()

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
