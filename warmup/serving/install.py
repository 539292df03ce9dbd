"""`install`: makes inductor take its decisions from a table, until the `Handle` is closed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from warmup.core.device import Mismatch, Runtime, compare_runtimes
from warmup.core.errors import (
    AdapterError,
    SettingsError,
    StaleTableWarning,
    TableError,
    TableMismatchError,
    TableNotFoundError,
)
from warmup.core.events import EventName, JsonLinesSink, Sink, Tally, log_event, logger, warn
from warmup.core.processes import RECORDING_VARIABLE
from warmup.core.rows import read_flag
from warmup.models.padding import Prepared, pad_by_rows, paddings, refusal_of
from warmup.serving.bundle import BundleName, name_of, take
from warmup.serving.handle import (
    Handle,
    InstallSettings,
    ProcessWatch,
    absolute_path,
    emitter_for,
    install_lock,
    installed,
    register,
)
from warmup.table.codec import digest_of
from warmup.table.lookup import Lookup, cache_tag
from warmup.table.schema import OnMiss, Table, Uncovered, options_served
from warmup.table.store import FoundTable, discover, find, first_unfit

if TYPE_CHECKING:
    from torch import nn

    from warmup.inductor.adapter import Inductor

MissAction: TypeAlias = Literal["fallback", "strict"]
UncoveredAction: TypeAlias = Literal["library", "measure", "forbid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """The arguments of `install`, and what its users set by variables alone: None reads them."""

    table: str | os.PathLike[str] | Table | FoundTable | None = None
    model: nn.Module | None = None
    on_miss: str = "fallback"
    uncovered: str = "library"
    bundle: BundleName = None
    freezing: bool | None = None
    audit_log: str | os.PathLike[str] | None = None
    device: str | None = None
    allow_mismatch: bool | None = None
    quiet: bool | None = None

    def device_name(self) -> str:
        return self.device or os.environ.get("WARMUP_DEVICE") or "auto"


def install(
    table: str | os.PathLike[str] | Table | None = None,
    *,
    model: nn.Module | None = None,
    on_miss: MissAction = "fallback",
    uncovered: UncoveredAction = "library",
    bundle: BundleName = None,
    freezing: bool | None = None,
    audit_log: str | os.PathLike[str] | None = None,
) -> Handle:
    """Make inductor take its decisions from *table*, in every thread, until the handle is closed.

    *table* is a path, a loaded table, or None: then ``WARMUP_TABLE``, or all tables for this device
    in the first of ``./tables``, the user data folder and the package that has any. *on_miss* is
    ``fallback`` (use the library kernel and count the miss) or ``strict`` (raise a `MissError`,
    which torch wraps in its own error). *uncovered* decides about a decision of no row kind, which
    is counted: take the ``library`` kernel of default mode, or ``measure``, or ``forbid`` it with
    an `UncoveredError`. Kernels of the user's own ``@triton.autotune`` without a row are measured
    unless forbidden. Every event is appended to *audit_log*, or ``WARMUP_AUDIT_LOG``, as a JSON
    line, and with ``WARMUP_LOG_EVENTS=1`` logged too.

    Of a table for another device or runtime, or under a torch that is not supported, nothing is
    applied: the process goes on as without a table, and `Handle.refused`, a notice, an event and a
    count say so. With ``strict`` it is an error, with ``WARMUP_ALLOW_MISMATCH=1`` every lookup of a
    table for another device or runtime is a miss. The device is that of ``WARMUP_DEVICE``, or the
    first GPU, or the CPU. Notices go to stderr, once for each cause; not with ``WARMUP_QUIET=1``.

    The weights of *model*, in eval mode and not compiled yet, are padded as `warmup.prepare` does.
    The kernels in the *bundle*, a path, or ``WARMUP_BUNDLE``, or else the file beside the table,
    ``NAME.bundle``, are put into inductor's caches; False or ``WARMUP_BUNDLE=0`` takes none. One
    that does not fit, or is not named and can be changed by another user, is ignored with a
    warning: a bundle is code.

    With *freezing*, or ``WARMUP_FREEZING=1``, compiles freeze weights where the table's build did:
    after a weight changed the graph is compiled again, or with ``strict`` each call is a
    `WeightChangedError` (docs/how-to/serve-with-a-table.md has the exceptions). Without it the rows
    of a CPU's frozen linears are not used.

    Compiles meanwhile run under the table's other inductor options. Those that decide what is
    measured replace the caller's; others of the caller's that contradict the table's are kept, with
    a warning and an event.

    A second call with the same table and settings, and no *model*, returns the same handle. In a
    program that `warmup build -- COMMAND` runs, every call returns the handle of the recording.

    Raises:
        SettingsError: another table, or this table with other settings, is installed; an argument
            or a variable cannot be used; *model* is in training mode, or padded already.
        TableError: the table is missing or damaged.
        TableMismatchError: with ``strict``, the table is for another device or runtime.
        AdapterError: with ``strict``, this torch is not supported.
    """
    return install_as(
        InstallRequest(
            table=table,
            model=model,
            on_miss=on_miss,
            uncovered=uncovered,
            bundle=bundle,
            freezing=freezing,
            audit_log=audit_log,
        )
    )


def install_as(request: InstallRequest) -> Handle:
    """Do what `install` says; of two threads the second waits, and shares what the first made."""
    check_actions(request.on_miss, request.uncovered)
    with install_lock:
        if os.environ.get(RECORDING_VARIABLE):
            recording = installed()  # by the start-up file, before this call
            if recording is None or not recording.settings.is_recording:
                raise SettingsError(
                    "`warmup build -- COMMAND` records this program, but Python did not run its "
                    "start-up file in this process",
                    "leave PYTHONPATH as the command set it, and start Python without -I, -E and "
                    "-S",
                )
            return recording.shared()
        return _install(request, OnMiss(request.on_miss))


def check_actions(on_miss: str, uncovered: str) -> None:
    if on_miss not in {OnMiss.FALLBACK, OnMiss.STRICT}:
        raise SettingsError(f"on_miss={on_miss!r}", "use one of fallback, strict")
    if uncovered not in set(Uncovered):
        raise SettingsError(f"uncovered={uncovered!r}", f"use one of {', '.join(Uncovered)}")


def _install(request: InstallRequest, on_miss: OnMiss) -> Handle:
    inductor, unsupported = _connect(request.device_name(), on_miss)
    from warmup.inductor.machine import describe_runtime, resolve_device, warm_workers

    device = resolve_device(request.device_name())
    here = describe_runtime(device)
    found = find_table(request.table, here, on_miss)
    settings = InstallSettings(
        digest=digest_of(found.table),
        on_miss=on_miss,
        uncovered=request.uncovered,
        device=here.device.name,
        audit_log=absolute_path(request.audit_log, "WARMUP_AUDIT_LOG"),
        bundle=name_of(request.bundle),
        freezes=read_flag(request.freezing, "WARMUP_FREEZING"),
        pads_model=request.model is not None,
    )
    if (current := installed()) is not None:
        return current.shared(settings)
    for remark in found.remarks:
        logger.warning("%s", remark)
    mismatches = compare_runtimes(found.table.provenance.runtime, here)
    is_allowed = read_flag(request.allow_mismatch, "WARMUP_ALLOW_MISMATCH")
    refused = unsupported or admit(found, here, mismatches, on_miss=on_miss, is_allowed=is_allowed)

    tally = Tally()
    sinks: list[Sink] = [tally, *([log_event] if read_flag(None, "WARMUP_LOG_EVENTS") else [])]
    emitter = emitter_for(settings.digest, sinks)
    is_quiet = read_flag(request.quiet, "WARMUP_QUIET")
    watch = ProcessWatch(found.origin or "the table", emitter, on_miss, is_quiet=is_quiet)
    lookup = Lookup(
        *(found.table.rows, on_miss, emitter, mismatches, Uncovered(request.uncovered)),
        searches=found.table.policy.searches,
        fixes_rows=found.table.policy.invariant,
    )
    file = JsonLinesSink(Path(settings.audit_log)) if settings.audit_log else None
    if file is not None:
        file.open()
        sinks.append(file)
    sinks.append(watch)
    try:
        prepared = _prepare(request.model, found.table, refused or refusal_of(mismatches))
        unpacked = attachment = None
        functions, is_compiling = 0, False
        if inductor is not None and refused is None:
            measures = request.uncovered == Uncovered.MEASURE  # graphs of the bundle would not
            tables = () if measures else found.paths
            unpacked = take(settings.bundle, tables, settings.digest, here, device)
            if unpacked is None or unpacked.refused is not None:
                warm_workers(device)
            functions, is_compiling = inductor.earlier_compiles()
            options = options_served(found.table.policy, freezes=settings.freezes)
            if "freezing" in found.table.policy.options and not settings.freezes:
                watch.needs_freezing = lookup.needs_freezing
            attachment = inductor.attach(
                lookup, options, cache_tag(settings.digest), observer=watch
            )
    except BaseException:
        if file is not None:
            file.close()
        raise
    emitter.emit(
        EventName.INSTALLED if refused is None else EventName.MISMATCHED,
        paths=[str(path) for path in found.paths],
        table=settings.digest,
        rows=len(found.table.rows),
        on_miss=on_miss,
        uncovered=request.uncovered,
        device=here.device.name,
        torch=here.torch,
        triton=here.triton,
        mismatches=[*map(str, mismatches), *filter(None, [unsupported])],
        bundle=None if unpacked is None else str(unpacked.path),
        bundle_refused=None if unpacked is None else unpacked.refused,
    )
    handle = Handle(
        *(found.table, settings.digest, lookup, tally, attachment, settings, watch),
        *(prepared, unpacked, refused, file),
    )
    register(handle)
    if refused is not None:
        watch.mismatch(refused)
    else:
        _log_installed(handle, found, here)
        watch.late(functions, is_compiling=is_compiling)
    return handle


def find_table(
    table: str | os.PathLike[str] | Table | FoundTable | None, here: Runtime, on_miss: OnMiss
) -> FoundTable:
    """Return *table* or, for None, that of ``WARMUP_TABLE`` or of a folder that is searched."""
    # In ``fallback``, where no table of these folders fits, the first of them: `admit` refuses it.
    # With ``RANK`` set, a note of an error names the rank.
    try:
        if isinstance(table, FoundTable):
            return table
        if isinstance(table, Table):
            return FoundTable(table, ())
        if table is not None or os.environ.get("WARMUP_TABLE"):
            return find(table, os.environ)
        try:
            return discover(here)
        except TableNotFoundError:
            unfit = first_unfit(here) if on_miss is OnMiss.FALLBACK else None
            if unfit is None:
                raise
            return unfit
    except TableError as error:
        if (rank := os.environ.get("RANK")) is not None:  # all ranks may print into one log
            error.add_note(f"this happened on rank {rank}")
        raise


def admit(
    found: FoundTable,
    here: Runtime,
    mismatches: Sequence[Mismatch],
    *,
    on_miss: OnMiss,
    is_allowed: bool,
) -> str | None:
    """Return why nothing of the table can be applied here, None where it is to be installed."""
    # What differs and is allowed, or makes no row useless, is a warning in one sentence. Without
    # ``fallback`` a difference that is not allowed is a TableMismatchError.
    hard = [mismatch for mismatch in mismatches if mismatch.is_hard]
    tuned_on = found.table.provenance.runtime
    origin = found.origin or "the table"
    summary = f"tuned on {tuned_on}, and here is {here}"
    if hard and not is_allowed and on_miss is OnMiss.FALLBACK:
        return f"{origin}: {summary}; build a table here (docs/how-to/upgrades.md)"
    if hard and not is_allowed:
        raise TableMismatchError(
            origin,
            tuple(map(str, hard)),
            'build a table here, or serve with on_miss="fallback", which goes on without a table',
            summary,
        )
    if hard:
        warn(StaleTableWarning(f"{origin}: {summary}: every lookup is a miss"))
    elif mismatches:
        differ = "; ".join(map(str, mismatches))
        warn(StaleTableWarning(f"{origin}: {differ}: timings may be off"))
    return None


def _log_installed(handle: Handle, found: FoundTable, here: Runtime) -> None:
    off = [] if handle.settings.audit_log else ["audit log"]
    off += ["bundle"] if handle.bundle is None or handle.bundle.refused is not None else []
    off += ["padded weights"] if handle.prepared is None or not handle.prepared.padded else []
    logger.info(
        "installed %s, digest %s: %d rows for %s; on a miss: %s; off: %s",
        found.origin or "a loaded table",
        handle.digest[:12],
        len(handle.table.rows),
        here,
        handle.settings.on_miss,
        ", ".join(off) or "nothing",
    )


def _connect(device: str, on_miss: OnMiss) -> tuple[Inductor | None, str]:
    from warmup.inductor import connect, start_workers

    try:
        start_workers(device)
        return connect(), ""
    except AdapterError as error:
        if on_miss is not OnMiss.FALLBACK:
            raise
        return None, str(error)


def _prepare(model: nn.Module | None, table: Table, refusal: str | None) -> Prepared | None:
    if model is not None:
        prepared = pad_by_rows(model, table.rows, refusal)
        logger.info("%s", prepared)
        return prepared
    if refusal is None and (agreed := paddings(table, ())):
        texts = dict.fromkeys(
            f"{structure.features} features to {padding}" for structure, padding in agreed.items()
        )
        logger.info(
            "weights stay unpadded; structures that install(table, model=model) would pad: %d (%s)",
            len(agreed),
            ", ".join(texts),
        )
    return None
