"""`explain`: the ranges of sizes for which torch.compile makes an artifact each, and why.

Nothing is tuned or timed: the model is compiled with dynamic shapes up to the code of its kernels,
and runs uncompiled. Inductor's questions are answered as by a server with an empty table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from warmup.core.buckets import Bucket, parse_buckets, parse_inputs
from warmup.core.device import ASSUMED_DEVICES, AssumedDevice
from warmup.core.errors import ModelError, SettingsError, WarmupError, warmup_error_in
from warmup.core.events import Emitter, Tally, Uncompiled
from warmup.core.text import first_line
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss

if TYPE_CHECKING:
    import torch

    from warmup.inductor.guards import (
        Artifact,
        AssumedGpu,
        DerivedSize,
        Guard,
        Recorder,
        SourceLine,
    )
    from warmup.models.inputs import PlacedModel
    from warmup.models.loading import Inputs

_Mark = tuple[int, int]  # the number of an input, and of its dim
_DRIVER_NEEDED: Final = (
    "some operations need a CUDA build of torch, which needs no GPU; or leave out --assume, on the "
    "device itself"
)
_NO_GRAPH: Final = {
    False: "is it disabled for torch.compile?",
    True: "change what torch cannot trace, or explain a part of the model",
}


class CauseKind(StrEnum):
    """Why a guard exists."""

    LIMIT = "limit"
    HEURISTIC = "heuristic"
    MODEL = "model"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a range ends, the guard, and the lines of torch (``place``) and the model (``user``)."""

    kind: CauseKind
    sentence: str
    expression: str
    place: SourceLine | None
    user: SourceLine | None


@dataclass(frozen=True, slots=True)
class Span:
    """The sizes that one artifact serves: ``low`` to ``high``, both inclusive, None for no end.

    All run the kernels chosen for ``tuned_at``, the size at which the artifact was compiled.
    ``sizes`` are the requested sizes among them. With ``conditions`` it serves only the sizes that
    meet them. ``unexpected`` is dynamo's reason for compiling where an earlier artifact should have
    served ``tuned_at``. ``unbound`` names symbolic sizes that do not follow from the dim.
    """

    graph: int
    low: int
    high: int | None
    tuned_at: int
    sizes: tuple[int, ...]
    low_cause: Cause | None
    high_cause: Cause | None
    conditions: tuple[Cause, ...] = ()
    unexpected: str = ""
    unbound: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of the model and its code; with graph breaks there are several."""

    number: int
    function: str
    path: str
    line: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """The explanation of one dim, with or without gradients.

    ``sizes`` are the given sizes, ``tried`` the sizes at which the model ran, ``held`` the other
    dims with their sizes. ``uncovered`` is the smallest size without an artifact, None when every
    size up to ``largest`` has one.
    """

    dim: str
    grad: bool
    sizes: tuple[int, ...]
    largest: int
    held: tuple[tuple[str, int], ...]
    graphs: tuple[Graph, ...]
    tried: tuple[int, ...]
    uncovered: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of a model: a section for each dim that has several sizes.

    ``assumptions`` are what nobody named, ``assumed`` the facts of an assumed device. ``caveats``
    limit the answer, such as frames that torch.compile leaves uncompiled.
    """

    model: str
    device: str
    torch: str
    mode: str
    recompile_limit: int
    sections: tuple[Section, ...]
    assumptions: tuple[str, ...] = ()
    assumed: AssumedDevice | None = None
    caveats: tuple[str, ...] = ()


def explain(
    model: str,
    *,
    seqlens: str | Sequence[int] | None = None,
    dims: str | Sequence[str] | None = None,
    inputs: Sequence[str] = (),
    device: str = "auto",
    dtype: str | None = None,
    mode: Literal["default", "max-autotune"] = "default",
    grad: bool | None = None,
    max_compiles: int = 16,
    assume: str | None = None,
) -> Explanation:
    """Return at which sizes of each dim torch.compile makes another artifact of *model*.

    Each dim with two sizes or more is marked dynamic in turn, with the other dims held at their
    first size. Its sizes are compiled in the order given, then the sizes up to the largest of
    them that no artifact serves, at most *max_compiles* in all. With
    gradients (*grad*; None explains both) the model is in training mode. *assume* names a GPU
    (`ASSUMED_DEVICES`) to compile for; the model itself then runs on the CPU.

    Raises:
        SettingsError: an argument cannot be used, or no input depends on the dim.
        ModelError: the model or its inputs cannot be loaded, run or compiled.
    """
    assumed = None
    if assume is not None and device != "auto":
        raise SettingsError(
            f"--assume {assume} and --device {device} name two devices", "leave one of them out"
        )
    if assume is not None and (assumed := ASSUMED_DEVICES.get(assume)) is None:
        known = ", ".join(ASSUMED_DEVICES)
        raise SettingsError(f"--assume {assume!r} is no known device", f"use one of {known}")
    buckets, specs = parse_buckets(seqlens, dims), parse_inputs(inputs)
    varying = _varying_dims(buckets)
    import torch

    from warmup.inductor import connect
    from warmup.inductor.guards import AssumedGpu
    from warmup.inductor.machine import describe_runtime, resolve_device
    from warmup.models.inputs import place_model

    inductor = connect()
    place = resolve_device("cpu" if assumed else device)
    runtime = describe_runtime(place)
    gpu = None if assumed is None else AssumedGpu(assumed)
    placed = place_model(model, specs, buckets, place, dtype)
    # Only with the switches on are candidates listed, and listing them may add guards.
    options = inductor.quiet_switches() if mode == "max-autotune" else {}
    tally = Tally()
    empty = Lookup({}, OnMiss.FALLBACK, Emitter([tally]))
    attachment = inductor.attach(empty, options, "explain", quiet=True)
    try:
        sections = [
            _DimCompiler(placed, gpu, buckets[0], dim, sizes, tally.uncompiled).section(
                max(sizes), max(max_compiles, len(sizes)), with_grad=with_grad
            )
            for dim, sizes in varying.items()
            for with_grad in ((False, True) if grad is None else (grad,))
        ]
    finally:
        attachment.detach()
    name = runtime.device.name if assumed is None else assumed.name
    return Explanation(
        model=placed.loaded.name,
        device=name,
        torch=runtime.torch,
        mode=mode,
        recompile_limit=torch.compiler.config.recompile_limit,
        sections=tuple(sections),
        assumptions=tuple(map(str, placed.resolved.assumptions)),
        assumed=assumed,
        caveats=(*_caveats(place, assumed), *Uncompiled(tuple(tally.uncompiled)).lines()),
    )


def _caveats(place: torch.device, assumed: AssumedDevice | None) -> Iterator[str]:
    if assumed is not None:
        yield (
            f"{assumed.name} is assumed, not here: torch traced the model on the CPU, and inductor "
            "compiled the graph for the assumed device; what the model or torch decide by the "
            "device before that is the CPU's (such as the kernel of an attention)"
        )
    elif place.type == "cpu":
        yield (
            "this is the answer for a CPU, and a GPU may have other ranges: "
            f"--assume {'|'.join(ASSUMED_DEVICES)} explains a GPU without having it"
        )


def _varying_dims(buckets: Sequence[Bucket]) -> dict[str, tuple[int, ...]]:
    tried = {
        name: [bucket.size_of(name) or 0 for bucket in buckets] for name, _ in buckets[0].sizes
    }
    sizes = {name: tuple(dict.fromkeys(own)) for name, own in tried.items()}
    varying = {name: own for name, own in sizes.items() if own[1:]}
    if not varying:
        raise SettingsError(
            f"every dim has one size ({buckets[0]})",
            "give two sizes or more, such as --seqlens 16,2048; ranges between them are found",
        )
    return varying


@dataclass(frozen=True)
class _DimCompiler:
    """Compiles a model at ``sizes`` of ``dim``; other dims are held at their sizes in ``first``."""

    model: PlacedModel
    gpu: AssumedGpu | None
    first: Bucket
    dim: str
    sizes: tuple[int, ...]
    frames: Collection[str]  # left uncompiled so far

    def section(self, largest: int, limit: int, *, with_grad: bool) -> Section:
        import torch

        from warmup.inductor.guards import Recorder, record

        marks = self._find_marks()
        recorder = Recorder(self.dim, tuple(dict.fromkeys(marks.values())), gpu=self.gpu)
        self.model.module.train(with_grad)
        with torch.set_grad_enabled(with_grad), record(recorder, limit + len(self.sizes)):
            compiled = torch.compile(self.model.module, backend=recorder)
            coverage = cover(
                lambda size: self._call(compiled, size, marks, recorder), self.sizes, largest, limit
            )
        self.model.module.eval()
        if not coverage.spans:
            left = f", with {Uncompiled(tuple(self.frames))}" if self.frames else ""
            raise ModelError(f"the model compiled no graph{left}", _NO_GRAPH[bool(self.frames)])
        graphs = []
        for number in dict.fromkeys(span.graph for span in coverage.spans):
            source = recorder.frames[number]
            own = tuple(span for span in coverage.spans if span.graph == number)
            graphs.append(Graph(number, source.function, source.path, source.line, own))
        held = tuple(each for each in self.first.sizes if each[0] != self.dim)
        about = self.dim, with_grad, self.sizes, largest, held, tuple(graphs)
        return Section(*about, coverage.tried, coverage.uncovered)

    def _call(
        self, compiled: Callable[..., Any], size: int, marks: Collection[_Mark], recorder: Recorder
    ) -> Sequence[Artifact]:
        from warmup.inductor.guards import mark_unless_fixed
        from warmup.models.inputs import naming_dtypes

        recorder.size = size
        inputs = self._inputs(size)
        leaves = inputs.leaves()
        for number, index in marks:
            mark_unless_fixed(leaves[number], index)
        before = len(recorder.artifacts)
        try:
            with naming_dtypes(self.model.module, inputs):
                compiled(*inputs.args, **inputs.kwargs)
        except WarmupError:
            raise
        except Exception as error:  # the user's model may raise anything
            own = warmup_error_in(error)
            raise ModelError(
                f"{self.dim}={size}: the model does not compile or run "
                f"({own or first_line(error)})",
                _DRIVER_NEEDED if self.gpu is not None and own is None else "",
            ) from error
        recorder.add_compile_metrics()
        return recorder.artifacts[before:]

    def _inputs(self, size: int) -> Inputs:
        return self.model.inputs(self.first.at({self.dim: size}))

    def _find_marks(self) -> dict[_Mark, DerivedSize]:
        from warmup.inductor.guards import DerivedSize

        compared = self.sizes[:3]
        leaves = [self._inputs(size).leaves() for size in compared]
        if any(getattr(leaf, "is_nested", False) for leaf in leaves[0]):
            raise ModelError(
                "an input is a nested tensor, whose sizes are its own and follow from no dim",
                "explain a model of its values, a dense tensor",
            )
        made = [[getattr(leaf, "shape", ()) for leaf in own] for own in leaves]
        if len({tuple(map(len, shapes)) for shapes in made}) > 1:
            raise SettingsError(
                f"the number of inputs, or of an input's dims, changes with {self.dim}",
                "explain a dim that changes sizes alone",
            )
        marks = {}
        for number, shapes in enumerate(zip(*made, strict=True)):
            for index, lengths in enumerate(zip(*shapes, strict=True)):
                if lengths[0] == lengths[1]:
                    continue
                times = (lengths[1] - lengths[0]) // (compared[1] - compared[0])
                follows = DerivedSize(times, lengths[0] - times * compared[0])
                if lengths != tuple(map(follows.at, compared)):
                    raise SettingsError(
                        f"size {index} of input {number} does not grow evenly with {self.dim}",
                        "explain a dim that the inputs follow as a multiple, or with a constant",
                    )
                marks[number, index] = follows
        if not marks:
            raise SettingsError(
                f"no input has a size that follows from {self.dim}", "name the dim in --input"
            )
        return marks


@dataclass
class Coverage:
    """The sizes at which the model ran, and what artifacts serve of ``sizes`` to ``largest``."""

    sizes: tuple[int, ...]
    largest: int
    tried: tuple[int, ...] = ()
    _served: list[tuple[Artifact, Span]] = field(default_factory=list)

    @property
    def spans(self) -> tuple[Span, ...]:
        spans = (span for _, span in self._served)
        return tuple(sorted(spans, key=lambda span: (span.graph, span.low)))

    @property
    def uncovered(self) -> int | None:
        graphs = {artifact.graph for artifact, _ in self._served}
        sizes = [size for graph in graphs if (size := self._uncovered_in(graph)) is not None]
        return min(sizes, default=None)

    def run(self, compile_at: Callable[[int], Sequence[Artifact]], size: int) -> None:
        serving = {artifact.graph for artifact, _ in self._served if artifact.serves(size)}
        self.tried += (size,)
        for artifact in compile_at(size):
            earlier = [other for other, _ in self._served if other.graph == artifact.graph]
            own = tuple(
                each
                for each in self.sizes
                if artifact.serves(each) and not any(other.serves(each) for other in earlier)
            )
            unexpected = artifact.why if artifact.graph in serving else ""
            self._served.append((artifact, _span(artifact, own, unexpected, self.largest)))

    def _uncovered_in(self, graph: int) -> int | None:
        own = [(artifact, span) for artifact, span in self._served if artifact.graph == graph]
        size = min(self.sizes)
        while size <= self.largest:
            span = next((span for artifact, span in own if artifact.serves(size)), None)
            if span is None and size not in self.tried:
                return size
            if span is None or span.conditions:  # None: the model ran here without this graph
                size += 1
            elif span.high is None:
                return None
            else:
                size = span.high + 1
        return None


def cover(
    compile_at: Callable[[int], Sequence[Artifact]], sizes: Sequence[int], largest: int, limit: int
) -> Coverage:
    """Return the ranges that artifacts serve, after *sizes* and then sizes without one.

    *compile_at* runs the model at a size and returns the new artifacts. In the end every size to
    *largest* is served, unless that takes more than *limit* sizes.
    """
    coverage = Coverage(tuple(sizes), largest)
    for size in sizes:
        coverage.run(compile_at, size)
    while (missing := coverage.uncovered) is not None and len(coverage.tried) < limit:
        coverage.run(compile_at, missing)
    return coverage


def _span(artifact: Artifact, sizes: tuple[int, ...], unexpected: str, ceiling: int) -> Span:
    ends, recurring = [], []
    for guard in artifact.guards:
        if (interval := guard.interval(artifact.size, ceiling)) is None:
            recurring.append(guard)
        else:
            ends.append((guard, *interval))
    low = max((low for _, low, _ in ends), default=0)
    high = min((high for _, _, high in ends if high is not None), default=None)
    conditions = []
    allowed = list(range(1, ceiling + 1)) if recurring else []
    for guard in recurring:  # only those that exclude a size which the guards before them allow
        still_allowed = [size for size in allowed if guard.holds(size)]
        if len(still_allowed) < len(allowed):
            conditions.append(cause_of(guard))
        allowed = still_allowed
    low_cause = _first_cause(guard for guard, end, _ in ends if end == low and end > 0)
    high_cause = _first_cause(guard for guard, _, end in ends if end is not None and end == high)
    bounds = artifact.graph, low, high, artifact.size, sizes, low_cause, high_cause
    return Span(*bounds, tuple(conditions), unexpected, artifact.unbound)


_INT32: Final = 2**31 - 1
_PAD_MM: Final = "torch/_inductor/fx_passes/pad_mm.py"
_ASKS_BOUND: Final = (
    "to decide if padding a matmul may pay, inductor compares its sizes to see whether it is bound "
    "by compute; in the backward of a Linear this dim is the inner one"
)
_ASKS_PADDING: Final = (
    "to decide if padding a matmul may pay, inductor compares its operations with the bytes that "
    "it moves"
)
_TMA: Final = (
    "to list a persistent TMA template (triton.enable_persistent_tma_matmul), inductor guards the "
    "sizes that it checks, whichever candidate wins"
)
_KERNEL: Final = "inductor looks at this size to choose how a kernel is written"
_LOWERING: Final = "inductor looks at this size to choose how an operation is computed"
_REWRITE: Final = "a pass of inductor looks at this size to decide how to rewrite the graph"
_BY_MODEL: Final = "the model's own code depends on this size"
_SHAPES: Final = "an operation of the model is defined for these sizes only"
_SMALL: Final = (
    "sizes 0 and 1 are always compiled on their own (0/1 specialisation); torch takes a dynamic "
    "size to be 2 or more"
)
_INDEX: Final = "32-bit indices end here; larger sizes need kernels with 64-bit indices"
_ONE_SIZE: Final = (
    "dynamo compiled this graph for one size: the dim reached it unmarked, as it does behind a "
    "graph break, until another size is seen"
)
_UNKNOWN: Final = "torch compares this size here; warmup does not know why"
# The cause follows from the line of torch that compared the size: the beginning of its path, its
# function or empty for any, and the cause. The first match counts.
_KNOWN: Final = (
    (_PAD_MM, "is_mm_compute_bound", CauseKind.HEURISTIC, _ASKS_BOUND),
    (_PAD_MM, "", CauseKind.HEURISTIC, _ASKS_PADDING),
    ("torch/_inductor/utils.py", "use_triton_tma_template", CauseKind.HEURISTIC, _TMA),
    ("torch/_inductor/utils.py", "can_use_tma", CauseKind.HEURISTIC, _TMA),
    ("torch/_inductor/fx_passes/", "", CauseKind.HEURISTIC, _REWRITE),
    ("torch/_inductor/codegen/", "", CauseKind.HEURISTIC, _KERNEL),
    ("torch/_inductor/", "", CauseKind.HEURISTIC, _LOWERING),
    ("torch/_dynamo/", "", CauseKind.MODEL, _BY_MODEL),
    ("torch/_refs/", "", CauseKind.LIMIT, _SHAPES),
    ("torch/_prims_common/", "", CauseKind.LIMIT, _SHAPES),
    ("torch/_meta_registrations.py", "", CauseKind.LIMIT, _SHAPES),
    ("torch/_subclasses/", "", CauseKind.LIMIT, _SHAPES),
)


def cause_of(guard: Guard) -> Cause:
    return Cause(*_classify(guard), guard.expression, guard.place, guard.user)


def _classify(guard: Guard) -> tuple[CauseKind, str]:
    if guard.is_default:
        return CauseKind.LIMIT, _SMALL
    if str(_INT32) in guard.expression or str(_INT32 + 1) in guard.expression:
        return CauseKind.LIMIT, _INDEX
    if guard.place is None:
        return CauseKind.UNKNOWN, _ONE_SIZE if guard.is_fixed else _UNKNOWN
    path, function = guard.place.path, guard.place.function
    for beginning, name, kind, sentence in _KNOWN:
        if path.startswith(beginning) and name in ("", function):
            return kind, sentence
    if not path.startswith("torch/"):
        return CauseKind.MODEL, _BY_MODEL
    return CauseKind.UNKNOWN, _UNKNOWN


def _first_cause(guards: Iterable[Guard]) -> Cause | None:
    causes = [cause_of(guard) for guard in guards]
    known = (cause for cause in causes if cause.kind is not CauseKind.UNKNOWN)
    return next(known, causes[0] if causes else None)
