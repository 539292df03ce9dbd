"""`Explainer`: compiles a loaded model at sizes of one dim, and returns the ranges as a section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from warmup.buckets.bucket import Bucket, InputSpec
from warmup.core.error_text import first_line
from warmup.core.errors import ModelError, SettingsError, WarmupError, warmup_error_in
from warmup.core.method import SEED
from warmup.diagnostics.recompiles.ranges import cover
from warmup.diagnostics.recompiles.section import Graph, Section, Span
from warmup.inductor.guards import (
    DerivedSize,
    Recorder,
    compile_recorded,
    mark_unless_fixed,
    record,
)
from warmup.models.dtype_mismatch import naming_dtypes
from warmup.models.loading import Inputs, LoadedModel, make_inputs

if TYPE_CHECKING:
    from warmup.inductor.assumed_gpu import AssumedGpu
    from warmup.inductor.guard import Artifact


_DRIVER_NEEDED: Final = (
    "some operations need a CUDA build of torch, which needs no GPU; or leave out --assume, on the "
    "device itself"
)


@dataclass
class Explainer:
    """A loaded model and how it is compiled: on ``device``, or for ``gpu`` if that is assumed."""

    model: LoadedModel
    specs: tuple[InputSpec, ...]
    device: torch.device
    dtype: torch.dtype | None
    max_compiles: int
    gpu: AssumedGpu | None = None

    def run(
        self,
        dim: str,
        sizes: tuple[int, ...],
        held: tuple[tuple[str, int], ...],
        *,
        with_grad: bool,
        largest: int | None,
        requests: Mapping[int, int],
    ) -> Section:
        """Return the section of one dim; *requests* are served sizes, with their counts."""
        most = max(*sizes, *requests, largest or 0)
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

            limit = max(self.max_compiles, len(sizes))
            coverage = cover(compile_at, sizes, most, limit, tuple(requests))
        module.eval()
        if not coverage.spans:
            raise ModelError("the model compiled no graph", "is it disabled for torch.compile?")
        return Section(
            dim=dim,
            grad=with_grad,
            sizes=tuple(dict.fromkeys((*sizes, *requests))),
            largest=most,
            held=held,
            graphs=_graphs(coverage.spans, recorder),
            tried=coverage.tried,
            uncovered=coverage.uncovered,
            requests=tuple(sorted(requests.items())),
        )

    def compile_static(
        self, dim: str, size: int, held: tuple[tuple[str, int], ...], *, with_grad: bool
    ) -> None:
        """Compile the model for one size, with the backward: inductor asks its questions."""
        recorder = Recorder(dim, (), gpu=self.gpu, size=size)
        module = self.model.module
        module.train(with_grad)
        with torch.set_grad_enabled(with_grad), record(recorder, self.max_compiles):
            compiled = compile_recorded(module, recorder)
            self._call(compiled, self._inputs(dim, size, held), {}, recorder)
        module.eval()

    def _call(
        self,
        compiled: Any,
        inputs: Inputs,
        marks: dict[tuple[int, int], DerivedSize],
        recorder: Recorder,
    ) -> Sequence[Artifact]:
        """Run the model on *inputs* and return the artifacts that this compiled."""
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

    def _inputs(self, dim: str, size: int, held: tuple[tuple[str, int], ...]) -> Inputs:
        torch.manual_seed(SEED)
        bucket = Bucket((*held, (dim, size)))
        return make_inputs(self.model, self.specs, bucket, self.device, self.dtype)

    def _find_marks(
        self, dim: str, sizes: tuple[int, ...], held: tuple[tuple[str, int], ...]
    ) -> dict[tuple[int, int], DerivedSize]:
        """Return how sizes of inputs depend on *dim*, by number of the input and of its dim.

        The inputs for up to three *sizes* are compared.
        """
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
    leaves: list[Any] = torch.utils._pytree.tree_leaves((inputs.args, inputs.kwargs))  # noqa: SLF001  torch's own tree walk has no public name
    return leaves


def _graphs(spans: Sequence[Span], recorder: Recorder) -> tuple[Graph, ...]:
    numbers = dict.fromkeys(span.graph for span in spans)
    graphs = []
    for number in numbers:
        frame = recorder.frames[number]
        own = tuple(span for span in spans if span.graph == number)
        graphs.append(Graph(number, frame.function, frame.path, frame.line, own))
    return tuple(graphs)
