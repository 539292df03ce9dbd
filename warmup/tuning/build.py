"""`BuildRequest` and `build`, which does it; `ThisProcess`, the runner that tunes on one device.

A source (a model and its buckets, problems, a program) says what is tuned; a runner where.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

from warmup.core.buckets import ShapePolicy
from warmup.core.device import Runtime, slug_of
from warmup.core.errors import BundleError, SettingsError, TableWriteError
from warmup.core.files import probe_folder
from warmup.core.rows import COMPILE_MODES, GRAPH_MODES, Effort, Flag
from warmup.core.text import __version__, printable, problem_in, remedy_for
from warmup.table.codec import digest_of
from warmup.table.schema import (
    MAX_ASSUMPTION,
    Policy,
    PolicyOptions,
    Provenance,
    Table,
    choose_policy,
)
from warmup.table.store import check_same_origin, check_writable, origin_differences, read
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.report import (
    NOT_BEGUN,
    BucketResult,
    BuildPlan,
    BuildReport,
    Observer,
    open_earlier,
    say_each,
)

if TYPE_CHECKING:
    import torch

    from warmup.inductor.adapter import Inductor
    from warmup.models.model_target import Assumption, LoadedModel
    from warmup.models.padding import Prepared
    from warmup.serving.bundle import PackedBundle
    from warmup.tuning.tuner import Tuner


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions(PolicyOptions):
    """How a build measures and what it measures again; None for a default.

    Of all builds: an existing table is completed. Only problems without a row are tuned, and those
    that were searched less far than ``search``; ``force`` tunes all again. A ``budget``, in seconds
    or as text such as ``20m``, ends so much time after the start. Of a model, each problem gets its
    cheap answer first, and those that may gain most are searched further until then, by ``default``
    or, when all were, by a wider ``search``; of problems, none is begun once it has passed. With
    ``retry`` ``unstable`` only rows of an existing table whose times do not carry a decision are
    measured, and such a row is replaced by better evidence only; with keys their rows are measured
    too. Before a measurement the build waits while other processes keep the machine busy,
    ``wait_for_quiet`` seconds in all (None: ``WARMUP_WAIT_FOR_QUIET``, else 30). A problem that the
    table lacks takes the row of a table of ``rows_from`` where it fits, unless rows are measured
    again. With ``dry_run`` the report has a plan instead of results; nothing is measured or
    written.

    Of a model: inputs that neither ``inputs`` nor the model's file names are inferred from its
    forward and weights, and the table says so. ``dtype`` casts the model. A bucket serves its own
    sizes alone; with the ``policy`` ``range`` one graph also serves the sizes down to the previous
    bucket, and is also checked at the lower end and in the middle. With ``pad_weights`` (None: on a
    GPU) weights with unaligned sizes are measured unpadded and padded; where padding pays, each
    bucket is run again with padded weights. Where layers repeat, and the first bucket shows that
    the model without the repeated layers asks for the same rows, other buckets are run without
    them, unless ``all_layers``. At its end the build serves the buckets once, and writes the
    kernels beside the table, unless ``bundle`` is false; on a GPU or with ``bundle_graphs``, the
    mode of the server's torch.compile, the graphs too. Why that failed is in the report, and with
    ``bundle`` true it is an error. On a CPU the model is compiled with frozen weights, since
    inductor's C++ template competes for those alone; ``freezing`` False compiles it as a program
    that freezes nothing does, and both builds complete one table. With ``invariant`` all winners
    for a weight add up a row in one order, in every bucket, and no weights are padded.
    """

    device: str = "auto"
    search: Literal["default", "wide", "exhaustive"] = "default"
    budget: str | float | None = None
    wait_for_quiet: float | None = None
    rows_from: tuple[str, ...] = ()
    effort: Literal["share", "full"] = "share"
    force: bool = False
    retry: Literal["unstable"] | tuple[str, ...] | None = None
    dry_run: bool = False
    inputs: tuple[str, ...] = ()
    dtype: str | None = None
    policy: Literal["exact", "pad", "range"] = "exact"
    pad_weights: bool | None = None
    freezing: bool | None = None
    all_layers: bool = False
    bundle: bool | None = None
    bundle_graphs: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None
    ) = None

    @property
    def measures_again(self) -> bool:
        """Whether rows of the table are measured again, so that none is taken from elsewhere."""
        return self.force or self.retry is not None

    def of_policy(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(PolicyOptions)}

    def of_problems(self) -> BuildOptions:
        return BuildOptions(
            search=self.search, wait_for_quiet=self.wait_for_quiet, **self.of_policy()
        )

    def given(self) -> Iterator[str]:
        """Yield the names of the options that are not their default."""
        for each in fields(self):
            if getattr(self, each.name) not in (each.default, ()):
                yield each.name

    def check(self) -> None:
        if self.policy not in set(ShapePolicy):
            raise SettingsError(f"policy={self.policy!r}", f"use one of {', '.join(ShapePolicy)}")
        if self.bundle_graphs not in (None, *COMPILE_MODES):
            raise SettingsError(
                f"bundle_graphs={self.bundle_graphs!r} is not a mode",
                f"use one of {', '.join(COMPILE_MODES)}",
            )
        if self.invariant and (self.pad_weights or self.rows_from):
            raise SettingsError(
                "invariant: padded weights and rows of other tables have other bits",
                "omit pad_weights and rows_from",
            )
        if self.bundle is False and self.bundle_graphs is not None:
            raise SettingsError("bundle_graphs needs the bundle", "omit one of the two options")


# The options that only a build of a model has.
OF_MODELS = frozenset(
    {
        *("retry", "inputs", "dtype", "policy", "pad_weights", "freezing"),
        *("all_layers", "bundle", "bundle_graphs", "invariant"),
    }
)


@dataclass(frozen=True, slots=True)
class BuildSetup:
    """A supported torch, a usable device, and the policy by which candidates are measured on it."""

    inductor: Inductor
    device: torch.device
    runtime: Runtime
    policy: Policy

    @property
    def can_search(self) -> bool:
        """Whether this device has GEMM candidates beyond those that inductor lists."""
        return self.device.type != "cpu"


@dataclass(kw_only=True)
class BuildContext:
    """A build on one device: what measures there, and the table, which the source opens."""

    request: BuildRequest
    observer: Observer
    setup: BuildSetup
    tuner: Tuner
    started: float
    progress: Progress = field(init=False)

    @property
    def options(self) -> BuildOptions:
        return self.request.options


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedWork:
    """What came of a `Work` beside its rows: see the fields of `BuildReport`."""

    buckets: Sequence[BucketResult]
    not_rebuilt: Mapping[str, str] = field(default_factory=dict)
    not_begun: Sequence[str] = ()
    prepared: Prepared | None = None


class Work(Protocol):
    """A source that was opened on one device; its table is the progress of the context."""

    @property
    def known(self) -> tuple[str, ...]:
        """The keys that had a row before, where the source names keys."""

    def plan(self) -> BuildPlan:
        """Return what would be tuned; nothing is measured or written."""

    def tune(self) -> TunedWork:
        """Tune it; each finished problem is on disk before the next one starts."""

    def check(self, work: TunedWork, not_tuned: Mapping[str, str]) -> None:
        """Raise a NothingRecordedError where *work* asked inductor for nothing at all."""

    def pack(self) -> PackedBundle | None:
        """Write the bundle beside the complete table, where the source has the model."""


class Source(Protocol):
    """What a build tunes."""

    @property
    def label(self) -> str: ...

    def refuses(self, request: BuildRequest) -> frozenset[str]:
        """Return what means nothing for this source: names of options, or of the runner."""

    def build(self, request: BuildRequest, observer: Observer) -> BuildReport:
        """Do *request*, whose source this is, on its runner."""

    def open(self, context: BuildContext) -> Work:
        """Open the source and its table on the device of *context*."""


class Runner(Protocol):
    """What tunes the problems of a source, and adds their rows to the table on disk."""

    @property
    def label(self) -> str: ...

    @property
    def first_device(self) -> str:
        """The device that plans, and that tunes what cannot be tuned apart from its model."""

    def refuses(self, request: BuildRequest) -> frozenset[str]:
        """Return what this runner cannot do: names of options, or of the source."""

    def tune(self, request: BuildRequest, observer: Observer) -> BuildReport:
        """Tune the problems of *request*, and return the report of its build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """A build: ``source`` is tuned on ``runner`` into the table ``out``, as ``options`` say.

    Without ``out`` a model has tables/DEVICE/MODEL.DTYPE.json below the current folder.
    """

    source: Source
    runner: Runner
    out: Path | None = None
    options: BuildOptions = field(default_factory=BuildOptions)

    @property
    def path(self) -> Path:
        """The table to complete; a SettingsError where the request names none."""
        if self.out is None:
            raise SettingsError("no table is named", "name the table to complete: out")
        return self.out

    def contradictions(self) -> tuple[str, list[str]] | None:
        names = {each.name for each in fields(BuildOptions)}
        for part in (self.source, self.runner):
            refused = part.refuses(self)
            given = [name for name in self.options.given() if name in refused]
            if given := [*given, *sorted(refused - names)]:
                return part.label, given
        return None

    def check(self) -> None:
        self.options.check()
        if (found := self.contradictions()) is not None:
            label, given = found
            raise SettingsError(f"{label} cannot be combined with {', '.join(given)}", "omit them")


def build(request: BuildRequest, observer: Observer | None = None) -> BuildReport:
    """Tune what *request* asks for, and write the winners to its table.

    Each finished problem is on disk before the next one starts: a second build completes what a
    killed build has left. In each run of a bucket the outputs, compiled with the winners, are
    checked (`warmup.tuning.session`). A row that makes them wrong stays in the table, is not
    served, and the next build measures its problem again without that winner.

    Raises:
        SettingsError, ModelError: the request or the model cannot be used; nothing was written.
        TableError: the table is damaged, of another device or policy, or cannot be written.
        OutputMismatchError: a bucket's output is wrong, also without the rows that may be to blame.
        BuildError: no device, or no process of a program, could be used.
        NothingRecordedError: nothing asked for a choice, or could be rebuilt without a table.
        BundleError: the bundle that the options name could not be made; the table is complete.
    """
    request.check()
    return request.source.build(request, observer or Observer())


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """The runner that tunes on the device of the options, in this process."""

    label: ClassVar[str] = "a build on one device"
    first_device: ClassVar[str] = "auto"

    def refuses(self, _request: BuildRequest) -> frozenset[str]:
        return frozenset()

    def tune(self, request: BuildRequest, observer: Observer) -> BuildReport:
        options = request.options
        with open_context(request, observer) as context:
            tuner, work = context.tuner, request.source.open(context)
            progress = context.progress
            earlier = progress.earlier
            if options.dry_run:
                plan, table = work.plan(), progress.table
                return BuildReport(
                    path=progress.path,
                    table=table,
                    digest=digest_of(table),
                    seconds=time.monotonic() - context.started,
                    known=work.known,
                    plan=plan,
                    rows_from=earlier.used() if earlier else (),
                )
            tuner.watch.start(seconds_to_wait(options.wait_for_quiet), observer.waiting_started)
            say_each(observer, tuner.watch.remarks())
            with progress:
                progress.flush()
                done = work.tune()
                progress.flush()
            machine, stages = tuner.watch.state(), tuner.clock.take()
            say_each(observer, (*machine.complaints, *machine.notes))
            # What was given up may have been measured on the way to another problem.
            tuned = progress.keys_since(0)
            given_up = {k: why for k, why in tuner.rows.not_tuned.items() if k not in tuned}
            work.check(done, given_up)
            tuner.close()  # its process holds memory of the device
            bundle, not_bundled = None, ""
            if options.bundle is not False:
                try:
                    bundle = work.pack()
                except BundleError as error:
                    if options.bundle or options.bundle_graphs:
                        raise
                    not_bundled = error.reason
        final = read(progress.path)
        return BuildReport(
            path=progress.path,
            table=final,
            digest=digest_of(final),
            buckets=tuple(done.buckets),
            timings=progress.measured,
            seconds=time.monotonic() - context.started,
            known=work.known,
            not_rebuilt=done.not_rebuilt,
            not_tuned={**given_up, **dict.fromkeys(done.not_begun, NOT_BEGUN)},
            not_fused=dict(tuner.rows.not_fused),
            peaks=tuner.bounds.known,
            prepared=done.prepared,
            bundle=bundle,
            not_bundled=not_bundled,
            distrusted=dict(progress.distrusted),
            machine=machine,
            retried=progress.revisit.retried,
            kept=dict(progress.kept),
            stages=stages,
            postponed={
                key: share
                for key, share in tuner.estimate.postponed.items()
                if (row := final.rows.get(key)) is not None and Flag.OPEN in row.evidence.flags
            },
            rows_from=earlier.used(tuned) if earlier else (),
        )


@contextmanager
def open_context(request: BuildRequest, observer: Observer) -> Iterator[BuildContext]:
    """Open the device of *request*; its table is opened by `open_progress`."""
    from warmup.tuning.tuner import make_tuner

    started, options = time.monotonic(), request.options
    if request.out is not None and not options.dry_run:
        check_out(request.out)
    setup = find_setup(options.device, options)
    observer.measuring_on(setup.runtime, setup.policy.timing)
    with make_tuner(setup.policy, setup.device, started) as tuner:
        tuner.region_questions.is_used, tuner.estimate.report = True, observer.time_left
        tuner.region_questions.is_thorough = options.effort == Effort.FULL.value
        tuner.replays_graphs = (options.bundle_graphs or setup.policy.mode) in GRAPH_MODES
        yield BuildContext(
            request=request, observer=observer, setup=setup, tuner=tuner, started=started
        )


def open_progress(
    context: BuildContext,
    path: Path,
    revisit: Callable[[Table], Revisit],
    assumptions: Iterable[Assumption] = (),
) -> Progress:
    """Return the progress of the build of *context*, into the table at *path*."""
    options, setup, tuner = context.options, context.setup, context.tuner
    table, replaces = open_table(
        path, setup, assumptions, force=options.force, is_read_only=options.dry_run
    )
    context.progress = Progress(
        path=path,
        table=table,
        replaces=replaces,
        observer=context.observer,
        can_search=setup.can_search,
        effort=Effort(options.effort),
        given_up=tuner.rows.not_tuned,
        measured_peaks=tuner.bounds.peaks,
        revisit=revisit(table),
        earlier=open_earlier(
            options.rows_from,
            table,
            setup.inductor.template_sources,
            measures_again=options.measures_again,
            is_dry=options.dry_run,
        ),
    )
    return context.progress


# The torch, device and policy of a build, and its table.

WAIT_FOR_QUIET_S: Final = 30.0


class TableOrigin(Protocol):
    """What decides whether rows may stand in a table: where and how they are measured."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def policy(self) -> Policy: ...


def find_setup(device: str, asked: PolicyOptions) -> BuildSetup:
    """Return the setup of a build on *device*, and start inductor's compile workers."""
    from warmup.inductor import connect, start_workers
    from warmup.inductor.machine import check_compiler, resolve_device, warm_workers

    start_workers(device, for_build=True)  # workers start up while this process imports the rest
    inductor = connect()
    resolved = resolve_device(device)
    check_compiler(resolved)
    warm_workers(resolved)
    switches = inductor.quiet_switches()
    if asked.invariant:
        switches |= inductor.invariant_options()
    policy = choose_policy(asked, resolved.type, switches)
    here = inductor.runtime(str(resolved))
    return BuildSetup(inductor, resolved, here, policy)


def check_out(path: Path) -> None:
    """Check that a table can be written to *path*, before anything is loaded; make its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe_folder(path)
    except OSError as error:
        advice = remedy_for(error, "make its folder writable or name another file with --out")
        raise TableWriteError(f"--out {path}", problem_in(error), advice) from error


def open_table(
    path: Path,
    setup: TableOrigin,
    assumptions: Iterable[Assumption] = (),
    *,
    force: bool,
    is_read_only: bool = False,
) -> tuple[Table, bool]:
    """Return the table to add rows to, and whether its first row replaces the table at *path*."""
    # That is the table at *path*, or an empty one where there is no file, or with *force* where its
    # table is of another device, runtime or policy; else that is a TableError. With *is_read_only*
    # nothing is written.
    if not is_read_only:
        check_writable(path)
    texts = [printable(one.text)[:MAX_ASSUMPTION] for one in assumptions]
    created = f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
    empty = Table(Provenance(setup.runtime, __version__, created).assuming(texts), setup.policy)
    if not path.exists():
        return empty, False
    existing = read(path)
    if force and origin_differences(existing, setup.runtime, setup.policy):
        return empty, True
    check_same_origin(path, existing, setup.runtime, setup.policy)
    return replace(existing, provenance=existing.provenance.assuming(texts)), False


def seconds_to_wait(given: float | None) -> float:
    """Return how long a build may wait for a quiet machine: *given*, else the variable, else 30."""
    name, value = "wait_for_quiet", given
    if given is None:
        name = "WARMUP_WAIT_FOR_QUIET"
        try:
            value = float(os.environ.get(name) or WAIT_FOR_QUIET_S)
        except ValueError:
            value = math.nan
    if value is None or not 0 <= value < math.inf:
        raise SettingsError(f"{name} is no number of seconds", "give 0 for no wait, or such as 30")
    return value


def out_path(
    out: str | Path | None, runtime: Runtime, model: LoadedModel, dtype: torch.dtype | None
) -> Path:
    if out is not None:
        return Path(out)
    from warmup.core.roofline import dtype_name
    from warmup.models.loading import floating_dtype

    cast = dtype or floating_dtype(model.module)
    words = [model.name, dtype_name(cast)] if cast is not None else [model.name]
    return Path("tables") / runtime.device.slug / f"{slug_of('.'.join(words))}.json"
