"""`explain`: the ranges of sizes for which torch.compile makes an artifact each, and why.

Nothing is tuned or timed, and no kernel is built: the model is compiled with dynamic shapes up to
the code of its kernels, and runs uncompiled. Inductor's questions on the way are answered as by a
server with an empty table. Torch is imported by the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from warmup.buckets.bucket import Bucket, InputSpec, parse_buckets, parse_inputs
from warmup.core.assumed_device import ASSUMED_DEVICES, AssumedDevice
from warmup.core.error_text import first_line
from warmup.core.errors import ModelError, SettingsError, WarmupError, warmup_error_in
from warmup.core.events import Emitter
from warmup.core.method import SEED
from warmup.core.runtime import Device, Runtime
from warmup.diagnostics.ranges import Span, cover
from warmup.table.lookup import Lookup, OnMiss, Uncovered

if TYPE_CHECKING:
    import torch

    from warmup.inductor.assumed_gpu import AssumedGpu
    from warmup.inductor.guard import Artifact
    from warmup.inductor.guards import DerivedSize, Recorder
    from warmup.models.loading import Inputs, LoadedModel

EXPLAINED_MODES: Final = ("default", "max-autotune")
_GPUS: Final = f"--assume {'|'.join(ASSUMED_DEVICES)} explains a GPU without having it"
_MIN_SIZES: Final = 2
_DRIVER_NEEDED: Final = (
    "some operations need a CUDA build of torch, which needs no GPU; or leave out --assume, on the "
    "device itself"
)


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of the model and the code it comes from; with graph breaks there are several."""

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


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a model: a section for each dim that has several sizes.

    ``assumptions`` are the model and inputs that nobody named, with how to name others.
    ``assumed`` are the facts of the device where it is assumed, else None. ``caveats`` are what
    else limits the answer.
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
    mode: str = "default",
    grad: bool | None = None,
    largest: int | None = None,
    max_compiles: int = 16,
    assume: str | None = None,
) -> Explanation:
    """Return at which sizes of each dim torch.compile makes another artifact of *model*.

    Each dim with two sizes or more is marked dynamic in turn, with the other dims held at their
    first size. Its sizes are compiled in the order given, then the sizes up to *largest* (by
    default the largest of them) that no artifact serves, at most *max_compiles* in all. *grad* says
    whether gradients are on; None explains both. With gradients the model is in training mode.
    *assume* names a GPU (`ASSUMED_DEVICES`) to compile for, which this machine need not have; the
    model itself runs on the CPU.

    Raises:
        SettingsError: an argument cannot be used, or no input depends on the dim.
        ModelError: the model or its inputs cannot be loaded, run or compiled.
    """
    if mode not in EXPLAINED_MODES:
        raise SettingsError(
            f"--mode {mode!r} cannot be explained", f"use {' or '.join(EXPLAINED_MODES)}"
        )
    assumed = None if assume is None else _assumed(assume, device)
    buckets, specs = parse_buckets(seqlens, dims), parse_inputs(inputs)
    varying = _varying_dims(buckets)
    from warmup.inductor import connect
    from warmup.inductor.guards import default_recompile_limit
    from warmup.inductor.machine import resolve_device
    from warmup.models.inferred_inputs import resolve_inputs
    from warmup.models.loading import load_model, parse_cast

    inductor, gpu = connect(), None
    runtime = inductor.runtime("cpu" if assumed else device)
    if assumed is not None:
        from warmup.inductor.assumed_gpu import assumed_gpu

        runtime, gpu = replace(runtime, device=_device_of(assumed)), assumed_gpu(assumed)
    cast, loaded = parse_cast(dtype), load_model(model)
    resolved = resolve_inputs(loaded, specs, buckets, cast)
    place = resolve_device("cpu" if assumed else device)
    compiler = _ModelCompiler(loaded, resolved.specs, place, cast, max_compiles, gpu)
    loaded.module.to(device=place, dtype=cast)
    # Only with the switches on are candidates listed, and listing them may add guards.
    options = inductor.quiet_switches() if mode == "max-autotune" else {}
    empty = Lookup({}, OnMiss.FALLBACK, Emitter([]), on_uncovered=Uncovered.FORBID)
    attachment = inductor.attach(empty, options, "explain", quiet=True)
    try:
        sections = [
            compiler.section(dim, sizes, held, with_grad=with_grad, largest=largest)
            for dim, sizes, held in varying
            for with_grad in ((False, True) if grad is None else (grad,))
        ]
    finally:
        attachment.detach()
    return Explanation(
        model=loaded.name,
        device=runtime.device.name,
        torch=runtime.torch,
        mode=mode,
        recompile_limit=default_recompile_limit(),
        sections=tuple(sections),
        assumptions=tuple(map(str, resolved.assumptions)),
        assumed=assumed,
        caveats=_caveats(runtime, assumed),
    )


def _assumed(name: str, device: str) -> AssumedDevice:
    if device != "auto":
        raise SettingsError(
            f"--assume {name} and --device {device} name two devices", "leave one of them out"
        )
    if name not in ASSUMED_DEVICES:
        raise SettingsError(
            f"--assume {name!r} is no known device", f"use one of {', '.join(ASSUMED_DEVICES)}"
        )
    return ASSUMED_DEVICES[name]


def _device_of(assumed: AssumedDevice) -> Device:
    return Device(
        type="cuda",
        vendor="nvidia",
        name=assumed.name,
        arch=assumed.arch,
        sm_count=assumed.sm_count,
        memory_gib=assumed.memory_gib,
    )


def _caveats(runtime: Runtime, assumed: AssumedDevice | None) -> tuple[str, ...]:
    if assumed is not None:
        caveat = (
            f"{assumed.name} is assumed, not here: torch traced the model on the CPU, and inductor "
            "compiled the graph for the assumed device; what the model or torch decide by the "
            "device before that is the CPU's (such as the kernel of an attention)"
        )
        return (caveat,)
    if runtime.device.type != "cpu":
        return ()
    return (f"this is the answer for a CPU, and a GPU may have other ranges: {_GPUS}",)


_HeldDims = tuple[tuple[str, int], ...]


def _varying_dims(buckets: Sequence[Bucket]) -> list[tuple[str, tuple[int, ...], _HeldDims]]:
    """Return each dim with several sizes: its name, its sizes as given, the other dims as held."""
    first = buckets[0].sizes
    varying = []
    for name, _ in first:
        sizes = tuple(dict.fromkeys(bucket.size_of(name) or 0 for bucket in buckets))
        if len(sizes) >= _MIN_SIZES:
            varying.append((name, sizes, tuple(dim for dim in first if dim[0] != name)))
    if not varying:
        raise SettingsError(
            f"every dim has one size ({buckets[0]})",
            "give two sizes or more, such as --seqlens 16,2048; ranges between them are found",
        )
    return varying


@dataclass(frozen=True)
class _ModelCompiler:
    """A loaded model and how it is compiled: on ``device``, or for ``gpu`` if that is assumed."""

    model: LoadedModel
    specs: tuple[InputSpec, ...]
    device: torch.device
    dtype: torch.dtype | None
    max_compiles: int
    gpu: AssumedGpu | None

    def section(
        self,
        dim: str,
        sizes: tuple[int, ...],
        held: _HeldDims,
        *,
        with_grad: bool,
        largest: int | None,
    ) -> Section:
        """Return the section of one dim."""
        import torch

        from warmup.inductor.guards import Recorder, compile_recorded, record

        most = max(*sizes, largest or 0)
        marks = self._find_marks(dim, sizes, held)
        recorder = Recorder(dim, tuple(dict.fromkeys(marks.values())), gpu=self.gpu)
        module = self.model.module
        module.train(with_grad)
        with torch.set_grad_enabled(with_grad), record(recorder, self.max_compiles + len(sizes)):
            compiled = compile_recorded(module, recorder)

            def compile_at(size: int) -> Sequence[Artifact]:
                inputs = self._inputs(dim, size, held)
                recorder.size = size
                return self._call(compiled, inputs, marks, recorder)

            coverage = cover(compile_at, sizes, most, max(self.max_compiles, len(sizes)))
        module.eval()
        if not coverage.spans:
            raise ModelError("the model compiled no graph", "is it disabled for torch.compile?")
        return Section(
            dim=dim,
            grad=with_grad,
            sizes=sizes,
            largest=most,
            held=held,
            graphs=_graphs(coverage.spans, recorder),
            tried=coverage.tried,
            uncovered=coverage.uncovered,
        )

    def _call(
        self,
        compiled: Any,
        inputs: Inputs,
        marks: dict[tuple[int, int], DerivedSize],
        recorder: Recorder,
    ) -> Sequence[Artifact]:
        """Run the model on *inputs* and return the artifacts that this compiled."""
        from warmup.inductor.guards import mark_unless_fixed
        from warmup.models.dtype_mismatch import naming_dtypes

        leaves = _leaves(inputs)
        for number, dim in marks:
            mark_unless_fixed(leaves[number], dim)
        before = len(recorder.artifacts)
        try:
            with naming_dtypes(self.model.module, inputs):
                compiled(*inputs.args, **inputs.kwargs)
        except WarmupError:
            raise
        except Exception as error:  # the user's model may raise anything
            own = warmup_error_in(error)
            raise ModelError(
                f"{recorder.dim}={recorder.size}: the model does not compile or run "
                f"({own or first_line(error)})",
                _DRIVER_NEEDED if self.gpu is not None and own is None else "",
            ) from error
        recorder.add_compile_metrics()
        return recorder.artifacts[before:]

    def _inputs(self, dim: str, size: int, held: _HeldDims) -> Inputs:
        import torch

        from warmup.models.loading import make_inputs

        torch.manual_seed(SEED)
        bucket = Bucket((*held, (dim, size)))
        return make_inputs(self.model, self.specs, bucket, self.device, self.dtype)

    def _find_marks(
        self, dim: str, sizes: tuple[int, ...], held: _HeldDims
    ) -> dict[tuple[int, int], DerivedSize]:
        """Return how sizes of inputs depend on *dim*, by number of the input and of its dim.

        The inputs for up to three *sizes* are compared.
        """
        from warmup.inductor.guards import DerivedSize

        shapes = [
            [tuple(leaf.shape) if hasattr(leaf, "shape") else () for leaf in _leaves(inputs)]
            for inputs in (self._inputs(dim, size, held) for size in sizes[:3])
        ]
        step = sizes[1] - sizes[0]
        marks = {}
        for number, (first, second) in enumerate(zip(shapes[0], shapes[1], strict=True)):
            for index, (here, there) in enumerate(zip(first, second, strict=True)):
                if here == there:
                    continue
                factor = (there - here) // step
                follows = DerivedSize(factor, here - factor * sizes[0])
                actual = zip(sizes, (shape[number][index] for shape in shapes), strict=False)
                if any(follows.at(size) != length for size, length in actual):
                    raise SettingsError(
                        f"size {index} of input {number} does not grow evenly with {dim}",
                        "explain a dim that the inputs follow as a multiple, or with a constant",
                    )
                marks[number, index] = follows
        if not marks:
            raise SettingsError(
                f"no input has a size that follows from {dim}", "name the dim in --input"
            )
        return marks


def _leaves(inputs: Inputs) -> list[Any]:
    import torch

    leaves: list[Any] = torch.utils._pytree.tree_leaves((inputs.args, inputs.kwargs))  # noqa: SLF001  torch's own tree walk has no public name
    return leaves


def _graphs(spans: Sequence[Span], recorder: Recorder) -> tuple[Graph, ...]:
    graphs = []
    for number in dict.fromkeys(span.graph for span in spans):
        frame = recorder.frames[number]
        own = tuple(span for span in spans if span.graph == number)
        graphs.append(Graph(number, frame.function, frame.path, frame.line, own))
    return tuple(graphs)
