"""`BuildRequest`: what a build tunes, with which options, into which table, and what runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from warmup.core.buckets import ShapePolicy
from warmup.core.errors import SettingsError
from warmup.core.method import COMPILE_MODES
from warmup.table.schema import Policy, PolicyOptions
from warmup.tuning.report import BucketResult, BuildPlan, BuildReport, Observer

if TYPE_CHECKING:
    import torch

    from warmup.core.device import Runtime
    from warmup.inductor.adapter import Inductor
    from warmup.models.padding import Prepared
    from warmup.serving.bundle import PackedBundle
    from warmup.tuning.progress import Progress
    from warmup.tuning.tuner import Tuner


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions(PolicyOptions):
    """How a build measures and what it measures again; None for a default.

    Of all builds: an existing table is completed. Only problems without a row are tuned, and those
    that were searched less far than ``search``; ``force`` tunes all again. Of a model, ``budget``,
    in seconds or as text such as ``20m``, searches each problem by ``default`` first, then those
    that may gain most by ``search``, until so much time has passed since the start; of problems, no
    problem is begun once it has passed. With ``retry`` only rows of an existing table whose times
    do not carry a decision are measured, and such a row is replaced by better evidence only. Before
    a measurement the build waits while other processes keep the machine busy, ``wait_for_quiet``
    seconds in all (None: ``WARMUP_WAIT_FOR_QUIET``, else 30). A problem that the table lacks takes
    the row of a table of ``rows_from`` where it fits, unless rows are measured again. With
    ``dry_run`` the report has a plan instead of results; nothing is measured or written.

    Of a model: inputs that neither ``inputs`` nor the model's file names are inferred from its
    forward and weights, and the table says so. ``dtype`` casts the model. A bucket serves its own
    sizes alone; with the ``policy`` ``range`` one graph also serves the sizes down to the previous
    bucket, and is also checked at the lower end and in the middle. With ``pad_weights`` (None: on a
    GPU) weights with unaligned sizes are measured unpadded and padded; where padding pays, each
    bucket is run again with padded weights. Where layers repeat, and the first bucket shows that
    the model without the repeated layers asks for the same rows, other buckets are run without
    them, unless ``all_layers``. With ``bundle`` the kernels that serving compiles are written
    beside the table; with ``bundle_graphs``, the mode of the server's torch.compile, its graphs
    too. On a CPU the model is compiled with frozen weights, since inductor's C++ template competes
    for those alone; ``freezing`` False compiles it as a program that freezes nothing does, and both
    builds complete one table.
    """

    device: str = "auto"
    search: Literal["default", "wide", "exhaustive"] = "default"
    budget: str | float | None = None
    wait_for_quiet: float | None = None
    rows_from: tuple[str, ...] = ()
    force: bool = False
    retry: Literal["unstable"] | None = None
    dry_run: bool = False
    inputs: tuple[str, ...] = ()
    dtype: str | None = None
    policy: Literal["exact", "pad", "range"] = "exact"
    pad_weights: bool | None = None
    freezing: bool | None = None
    all_layers: bool = False
    bundle: bool = False
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


# The options that only a build of a model has.
OF_MODELS = frozenset(
    {
        *("retry", "inputs", "dtype", "policy", "pad_weights", "freezing"),
        *("all_layers", "bundle", "bundle_graphs"),
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
        """Return the bundle that was written beside the complete table, if one was asked for."""


class Source(Protocol):
    """What a build tunes."""

    @property
    def label(self) -> str:
        """The source as an option of the command line."""

    def refuses(self, request: BuildRequest) -> frozenset[str]:
        """Return what means nothing for this source: names of options, or of the runner."""

    def build(self, request: BuildRequest, observer: Observer) -> BuildReport:
        """Do *request*, whose source this is, on its runner."""

    def open(self, context: BuildContext) -> Work:
        """Open the source and its table on the device of *context*."""


class Runner(Protocol):
    """What tunes the problems of a source, and adds their rows to the table on disk."""

    @property
    def label(self) -> str:
        """The runner as an option of the command line."""

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
