"""`explain`: the ranges of a dim at which torch.compile makes another artifact, and why.

Nothing is tuned, timed or built: the model is compiled up to the code of its kernels, under dynamic
shapes, and runs uncompiled. What would be measured on the way is answered as serving with an empty
table answers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from warmup.buckets.bucket import Bucket, InputSpec, parse_buckets, parse_inputs
from warmup.core.errors import ModelError, SettingsError, WarmupError, first_line, warmup_error_in
from warmup.core.events import Emitter
from warmup.core.method import SEED
from warmup.diagnostics.recompiles.ranges import Span, cover
from warmup.table.lookup import Lookup, OnMiss, Uncovered

if TYPE_CHECKING:
    import torch

    from warmup.inductor.guard import Artifact
    from warmup.inductor.guards import DerivedSize, Recorder
    from warmup.models.loading import Inputs, LoadedModel

EXPLAINED_MODES: Final = ("default", "max-autotune")
_FEWEST: Final = 2


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph of the model and the code it comes from; a model that breaks has several."""

    number: int
    function: str
    path: str
    line: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One dim, with or without gradients. ``tried`` are the sizes compiled or found served.

    ``held`` are the other dims, at the sizes they had. ``uncovered`` is the smallest size left
    without an artifact, None when there is none up to ``largest``.
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
    """What was found for a model: a section for each dim that has several sizes."""

    model: str
    device: str
    torch: str
    mode: str
    recompile_limit: int
    sections: tuple[Section, ...]


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
) -> Explanation:
    """Return where torch.compile makes another artifact of *model* as each dim grows.

    Each dim with two sizes or more is marked dynamic in turn, the others held at their first size;
    its sizes are compiled in the order given, then those up to *largest* (their largest) that
    nothing serves yet, at most *max_compiles* in all. *grad* says whether gradients are on; both
    ways without it. With gradients the model is in training mode.

    Raises:
        SettingsError: an argument cannot be used, or no input follows from the dim.
        ModelError: the model or its inputs cannot be loaded, run or compiled.
    """
    if mode not in EXPLAINED_MODES:
        raise SettingsError(
            f"--mode {mode!r} cannot be explained", f"use {' or '.join(EXPLAINED_MODES)}"
        )
    buckets, specs = parse_buckets(seqlens, dims), parse_inputs(inputs)
    varied = _varied(buckets)
    from warmup.inductor import connect
    from warmup.inductor.guards import default_recompile_limit
    from warmup.inductor.machine import resolve_device
    from warmup.models.loading import load_model, parse_dtype

    inductor = connect()
    work = _Explaining(
        load_model(model),
        specs,
        resolve_device(device),
        parse_dtype(dtype, "--dtype") if dtype is not None else None,
        mode,
        max_compiles,
    )
    work.model.module.to(device=work.device, dtype=work.dtype)
    # A switch decides whether candidates are listed; the listing alone may guard.
    options = inductor.quiet_switches() if mode == "max-autotune" else {}
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([]), on_uncovered=Uncovered.FORBID)
    attachment = inductor.attach(lookup, options, "explain", quiet=True)
    try:
        sections = [
            work.run(dim, sizes, held, with_grad=with_grad, largest=largest)
            for dim, sizes, held in varied
            for with_grad in ((False, True) if grad is None else (grad,))
        ]
    finally:
        attachment.detach()
    runtime = inductor.runtime(device)
    return Explanation(
        model=work.model.name,
        device=runtime.device.name,
        torch=runtime.torch,
        mode=mode,
        recompile_limit=default_recompile_limit(),
        sections=tuple(sections),
    )


_Varied = tuple[str, tuple[int, ...], tuple[tuple[str, int], ...]]


def _varied(buckets: Sequence[Bucket]) -> list[_Varied]:
    """Return each dim with several sizes: its name, its sizes as given, the others as held."""
    first = buckets[0].sizes
    found = []
    for name, _ in first:
        sizes = tuple(dict.fromkeys(bucket.size_of(name) or 0 for bucket in buckets))
        if len(sizes) >= _FEWEST:
            found.append((name, sizes, tuple(each for each in first if each[0] != name)))
    if not found:
        raise SettingsError(
            f"every dim has one size ({buckets[0]})",
            "give two sizes or more, such as --seqlens 16,2048: what lies between is found",
        )
    return found


@dataclass
class _Explaining:
    """One model being explained."""

    model: LoadedModel
    specs: tuple[InputSpec, ...]
    device: torch.device
    dtype: torch.dtype | None
    mode: str
    max_compiles: int

    def run(
        self,
        dim: str,
        sizes: tuple[int, ...],
        held: tuple[tuple[str, int], ...],
        *,
        with_grad: bool,
        largest: int | None,
    ) -> Section:
        """Return what is found for one dim."""
        import torch

        from warmup.inductor.guards import Recorder, compile_recorded, record

        most = max(*sizes, largest or 0)
        marks = self._find_marks(dim, sizes, held)
        recorder = Recorder(dim, tuple(dict.fromkeys(marks.values())))
        module = self.model.module
        module.train(with_grad)
        with torch.set_grad_enabled(with_grad), record(recorder, self.max_compiles + len(sizes)):
            compiled = compile_recorded(module, recorder)

            def compile_at(size: int) -> Sequence[Artifact]:
                made = self._inputs(dim, size, held)
                recorder.size = size
                return self._call(compiled, made, marks, recorder)

            found = cover(compile_at, sizes, most, max(self.max_compiles, len(sizes)))
        module.eval()
        if not found.spans:
            raise ModelError("the model compiled no graph", "is it disabled for torch.compile?")
        return Section(
            dim=dim,
            grad=with_grad,
            sizes=sizes,
            largest=most,
            held=held,
            graphs=_graphs(found.spans, recorder),
            tried=found.tried,
            uncovered=found.uncovered,
        )

    def _call(
        self,
        compiled: Any,
        made: Inputs,
        marks: dict[tuple[int, int], DerivedSize],
        recorder: Recorder,
    ) -> Sequence[Artifact]:
        """Run the model at one size and return what was compiled for it."""
        from warmup.inductor.guards import mark_unless_fixed

        leaves = _leaves(made)
        for place, axis in marks:
            mark_unless_fixed(leaves[place], axis)
        before = len(recorder.artifacts)
        try:
            compiled(*made.args, **made.kwargs)
        except WarmupError:
            raise
        except Exception as error:  # the user's model may raise anything
            own = warmup_error_in(error)
            raise ModelError(
                f"{recorder.dim}={recorder.size}: the model does not compile or run "
                f"({own or first_line(error)})"
            ) from error
        recorder.add_compile_metrics()
        return recorder.artifacts[before:]

    def _inputs(self, dim: str, size: int, held: tuple[tuple[str, int], ...]) -> Inputs:
        import torch

        from warmup.models.loading import make_inputs

        torch.manual_seed(SEED)
        bucket = Bucket((*held, (dim, size)))
        return make_inputs(self.model, self.specs, bucket, self.device, self.dtype)

    def _find_marks(
        self, dim: str, sizes: tuple[int, ...], held: tuple[tuple[str, int], ...]
    ) -> dict[tuple[int, int], DerivedSize]:
        """Return the sizes of inputs that follow from the dim, by input and axis."""
        from warmup.inductor.guards import DerivedSize

        shapes = [
            [tuple(leaf.shape) if hasattr(leaf, "shape") else () for leaf in _leaves(made)]
            for made in (self._inputs(dim, size, held) for size in sizes[:3])
        ]
        first, second = shapes[0], shapes[1]
        step = sizes[1] - sizes[0]
        marks = {}
        for place, (one, other) in enumerate(zip(first, second, strict=True)):
            for axis, (here, there) in enumerate(zip(one, other, strict=True)):
                if here == there:
                    continue
                times = (there - here) // step
                follows = DerivedSize(times, here - times * sizes[0])
                seen = zip(sizes, (shape[place][axis] for shape in shapes), strict=False)
                if any(follows.at(size) != found for size, found in seen):
                    raise SettingsError(
                        f"size {axis} of input {place} does not grow evenly with {dim}",
                        "explain a dim that the inputs follow as a multiple, or with a constant",
                    )
                marks[place, axis] = follows
        if not marks:
            raise SettingsError(
                f"no input has a size that follows from {dim}", "name the dim in --input"
            )
        return marks


def _leaves(made: Inputs) -> list[Any]:
    import torch

    leaves: list[Any] = torch.utils._pytree.tree_leaves((made.args, made.kwargs))  # noqa: SLF001  torch's own tree walk has no public name
    return leaves


def _graphs(spans: Sequence[Span], recorder: Recorder) -> tuple[Graph, ...]:
    numbers = dict.fromkeys(span.graph for span in spans)
    graphs = []
    for number in numbers:
        frame = recorder.frames[number]
        own = tuple(span for span in spans if span.graph == number)
        graphs.append(Graph(number, frame.function, frame.path, frame.line, own))
    return tuple(graphs)
