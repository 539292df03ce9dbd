"""`LayerArtifact`: one layer compiled alone, and its artifact called with the weights of others.

What makes two layers equal is dynamo's argument, not ours: compiling a layer makes guards about all
that its trace has read, and where they hold for another layer, dynamo itself would run the code of
the first one for it. Added to that is what dynamo takes for granted: no hooks, and weights that are
aligned alike.

The artifact is inductor's own function, without the code that dynamo and AOTAutograd put around it.
What that code would have to do is therefore refused: writing into inputs, outputs that are views of
inputs, random numbers, attributes that the forward sets, gradients, tensor subclasses. Which input
of the function is which tensor is read off a real call, by identity.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config
from torch._inductor.output_code import CompiledFxGraph

from warmup.inductor.artifacts import graph_break_reason
from warmup.inductor.dynamic_dims import mark_range
from warmup.inductor.layer_form import (
    CallForm,
    Path,
    UnshareableLayerError,
    form_of,
    tensors_of_call,
)
from warmup.inductor.opaque_call import SizeOf, TensorLayout, Tensors
from warmup.inductor.patches import Patches

Ranges = Mapping[Path, Mapping[int, tuple[int, int]]]  # smallest and largest size by dim
_ALIGNMENT: Final = 16  # bytes; inductor's kernels may rely on it (torch/_inductor/utils.py)
_LAYER: Final = "layer"  # the name of the layer in the frame that dynamo compiles
_MADE_HERE: Final = ("AttributeMutationNew", "ValueMutationNew")


@dataclass(slots=True)
class _Trace:
    """What the compile and the first run of a layer showed."""

    sources: list[Any] = field(default_factory=list)  # of the inputs of dynamo's graph
    holders: tuple[str, ...] = ()  # expressions of what guarded attributes are attributes of
    refusal: str | None = None
    graph: Any = None  # inductor's
    inputs: list[Any] | None = None
    outputs: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class LayerArtifact:
    """The artifact of one layer for one bucket; made by a `LayerCompiler`.

    ``weights`` are expressions of the inputs that are the layer's, by position among all
    ``number_of_inputs``; ``arguments`` are the positions of the inputs that come with the call, and
    ``sizes`` those of the inputs that are the size of a dim of an argument. ``dynamic`` has the
    sizes of the first call, for dims that serve a range.
    """

    form: CallForm
    paths: tuple[Path, ...]
    inputs: tuple[TensorLayout, ...]
    outputs: tuple[TensorLayout, ...]
    weights: Mapping[int, str]
    arguments: tuple[int, ...]
    sizes: Mapping[int, SizeOf]
    dynamic: Mapping[SizeOf, int]
    number_of_inputs: int
    _graph: Any
    _guards: Any
    _entry: Callable[..., Any]  # its code object owns the guards
    _aligned: Mapping[int, bool]
    _holders: tuple[str, ...]

    def difference(self, layer: nn.Module, args: Any, kwargs: Any) -> str | None:
        """Return the guard that fails for *layer* and this call; None where all guards hold."""
        frame = {_LAYER: layer, "args": args, "kwargs": kwargs}
        if not self._guards.check(frame):
            parts = self._guards.check_verbose(frame).verbose_code_parts
            text = _readable(parts[0]) if parts else "a guard without a name"
            return text if text.startswith("tensor ") else f"{text} does not hold"
        for position, weight in self.weights_of(layer).items():
            if _is_aligned(weight) != self._aligned[position]:
                return f"{_readable(self.weights[position])} is aligned differently in memory"
        return None

    def weights_of(self, layer: nn.Module) -> dict[int, torch.Tensor]:
        """Return the tensors of *layer* that the artifact reads, by position among its inputs."""
        return {
            position: _evaluate(text, layer, self._entry.__globals__)
            for position, text in self.weights.items()
        }

    def dicts_of(self, layer: nn.Module) -> list[dict[str, Any]]:
        """Return the dicts of what the guards read of *layer*, but for its modules' own dicts."""
        names, frame = self._entry.__globals__, {_LAYER: layer}
        found: list[dict[str, Any]] = []
        for text in self._holders:
            holder = _evaluate(text, layer, names, frame)
            if type(holder) is dict:
                found.append(holder)
            elif not isinstance(holder, (nn.Module, torch.Tensor, type, ModuleType)):
                found.append(getattr(holder, "__dict__", {}))
        return [each for each in found if type(each) is dict]

    def call_with(self, layer: nn.Module) -> Callable[[Tensors], Tensors]:
        """Return the function of the call's tensors that runs the artifact for *layer*."""
        row: list[Any] = [None] * self.number_of_inputs
        for position, weight in self.weights_of(layer).items():
            row[position] = weight
        run, positions = self._graph.current_callable, self.arguments
        sizes = [(position, *size) for position, size in self.sizes.items()]

        def call(inputs: Tensors) -> Tensors:
            own = row.copy()
            for position, tensor in zip(positions, inputs, strict=True):
                own[position] = tensor
            for position, number, dim in sizes:
                own[position] = inputs[number].shape[dim]
            found: Tensors = run(own)
            return found

        return call

    def varied(self, layer: nn.Module, args: Any, kwargs: Any) -> LayerArtifact:
        """Return the artifact with the sizes of its outputs that follow from a dynamic dim.

        These are the sizes that differ for this call, which has other sizes than the first one.

        Raises:
            UnshareableLayerError: a size of an output differs, and is no size of an argument.
        """
        tensors = dict(tensors_of_call(args, kwargs))
        inputs = [tensors[path] for path in self.paths]
        dynamic: dict[tuple[Any, int], SizeOf] = {
            (first, inputs[size.input].shape[size.dim]): size
            for size, first in self.dynamic.items()
        }
        outputs = []
        for layout, tensor in zip(self.outputs, self.call_with(layer)(inputs), strict=True):
            if layout.stride is None:  # known from an earlier proof
                outputs.append(layout)
                continue
            pairs = enumerate(zip(layout.shape, tensor.shape, strict=True))
            changed = {dim: pair for dim, pair in pairs if pair[0] != pair[1]}
            if unknown := [pair for pair in changed.values() if pair not in dynamic]:
                raise UnshareableLayerError(
                    f"returns a dim of {unknown[0][1]} that is no size of an argument"
                )
            symbolic = layout.with_sizes({dim: dynamic[pair] for dim, pair in changed.items()})
            if symbolic is None:
                raise UnshareableLayerError("returns a tensor of dynamic sizes that is not dense")
            outputs.append(symbolic)
        return replace(self, outputs=tuple(outputs))


class LayerCompiler:
    """Compiles one layer for one bucket in *mode*; its code object is named *name*.

    The forward alone is compiled, without the layer's own hooks. Where the first call ends before
    the graph runs (`warmup.inductor.deferred_kernels`), the next call goes on from there.
    """

    def __init__(self, mode: str | None, name: str) -> None:
        self._entry, self._trace = _entry(name), _Trace()
        backend = _backend(self._trace, mode)
        self._compiled = torch.compile(self._entry, backend=backend, fullgraph=True, dynamic=False)

    def compile(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: Any, ranges: Ranges
    ) -> LayerArtifact:
        """Return the artifact of *layer* for this call, which runs once.

        It serves every size in *ranges*. Nothing runs before the trace is known to be free of side
        effects.

        Raises:
            UnshareableLayerError: the layer cannot be compiled alone.
            Exception: an error of the layer or of the compiler.
        """
        trace, call = self._trace, (layer, *_marked(args, kwargs, ranges))
        try:
            result = self._run(call)
            return _artifact_of(trace, self._entry, call, result, ranges)
        finally:
            trace.inputs, trace.outputs = None, ()  # the backend keeps the trace

    def _run(self, call: tuple[nn.Module, tuple[Any, ...], dict[str, Any]]) -> Any:
        """Return the result of *call*, the first run of what is compiled.

        Raises as `compile` does.
        """
        before = _random_state(*call[1:])
        try:
            with _recording(self._trace):
                result = self._compiled(*call)
        except Exception as error:
            if self._trace.refusal is not None:
                raise UnshareableLayerError(self._trace.refusal) from error
            if (graph_break := graph_break_reason(error)) is not None:
                raise UnshareableLayerError(f"has a graph break: {graph_break}") from error
            raise
        if before != _random_state(*call[1:]):
            raise UnshareableLayerError("draws random numbers")
        return result


def _entry(name: str) -> Callable[..., Any]:
    """Return the function that dynamo compiles: it has a code object, and so guards, of its own."""

    def call(layer: nn.Module, args: Any, kwargs: Any) -> Any:
        return layer.forward(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=name)
    return call


def _backend(trace: _Trace, mode: str | None) -> Callable[..., Any]:
    def compile_graph(graph: Any, inputs: Sequence[Any]) -> Any:
        trace.refusal = _refusal(graph)
        if trace.refusal is not None:
            raise UnshareableLayerError(trace.refusal)
        trace.holders = _holders()
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        trace.sources = [node.meta["grapharg"].source for node in placeholders]
        options = dict(torch._inductor.list_mode_options(mode)) if mode else {}
        options["triton.cudagraphs"] = False  # the graph around the layers is recorded, with them
        return compile_fx_module.compile_fx(graph, list(inputs), config_patches=options)

    return compile_graph


def _refusal(graph: Any) -> str | None:
    """Return why the traced *graph* needs more than its kernels; None if it needs nothing else."""
    if inductor_config.freezing:  # set around each compile by a table for a CPU
        return "has its weights frozen into its graph, as tables for a CPU do (freezing)"
    examples = [
        (node, node.meta.get("example_value"))
        for node in graph.graph.nodes
        if node.op == "placeholder"
    ]
    if torch.is_grad_enabled() and any(
        isinstance(example, torch.Tensor) and example.requires_grad for _, example in examples
    ):
        return "computes gradients: call the model under torch.no_grad()"
    effects = InstructionTranslator.current_tx().output.side_effects
    for changed in effects._get_modified_vars():
        if changed.source is not None and type(changed.mutation_type).__name__ not in _MADE_HERE:
            return f"changes {_readable(changed.source.name)} in its forward"
    for node, example in examples:
        place = _readable(node.meta["grapharg"].source.name)
        if not isinstance(example, torch.Tensor | torch.SymInt):
            return f"has the input {place}, no tensor"
        if isinstance(example, torch.Tensor) and _is_written(example):
            return f"writes into {place}"
    return None


def _holders() -> tuple[str, ...]:
    """Return the places, reached from the layer, of whatever has a part that guards read."""
    names: dict[str, None] = {}
    for guard in InstructionTranslator.current_tx().output.guards:
        source = getattr(guard.originating_source, "base", None)
        while source is not None:
            if source.name.startswith(f"L['{_LAYER}']"):
                names[source.name] = None
            source = getattr(source, "base", None)
    return tuple(names)


def _is_written(example: torch.Tensor) -> bool:
    """Return whether the trace wrote into *example*, the fake tensor of an input."""
    return not example.is_inference() and bool(example._version)


class _recording:  # noqa: N801  a context manager
    """Keeps the graph of inductor that this thread runs first, with its inputs and outputs.

    What `compile_fx` calls back with is not enough: it calls nothing for a graph that AOTAutograd
    has in its cache.
    """

    def __init__(self, trace: _Trace) -> None:
        self._trace, self._thread, self._patches = trace, threading.get_ident(), Patches()

    def __enter__(self) -> None:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(graph: Any, inputs: Any) -> Any:
                trace = self._trace
                if threading.get_ident() != self._thread or trace.graph is not None:
                    return original(graph, inputs)
                trace.graph, trace.inputs = graph, list(inputs)
                trace.outputs = original(graph, inputs)
                return trace.outputs

            return call

        self._patches.wrap(CompiledFxGraph, "__call__", wrap)

    def __exit__(self, *_: object) -> None:
        self._patches.restore()


def _marked(args: Any, kwargs: Any, ranges: Ranges) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the call with aliases of the tensors in *ranges*, which are marked as dynamic."""
    aliases: dict[int, torch.Tensor] = {}

    def marked(value: Any, path: Path) -> Any:
        if type(value) is dict:
            return {key: marked(inner, (*path, key)) for key, inner in value.items()}
        if type(value) in (list, tuple):
            return type(value)(marked(inner, (*path, i)) for i, inner in enumerate(value))
        if path not in ranges:
            return value
        alias = aliases.setdefault(id(value), value.detach())
        for dim, (low, high) in ranges[path].items():
            mark_range(alias, dim, low, high, hint=high)
        return alias

    return marked(tuple(args), (0,)), marked(dict(kwargs), (1,))


def _artifact_of(
    trace: _Trace,
    entry: Callable[..., Any],
    call: tuple[Any, Any, Any],
    result: Any,
    ranges: Ranges,
) -> LayerArtifact:
    layer, args, kwargs = call
    if trace.graph is None or trace.inputs is None:
        raise UnshareableLayerError("computes nothing that inductor compiles")
    inputs = trace.inputs
    places = _places(trace, inputs, call, entry.__globals__)
    paths = {_name_of(path): path for path, _ in tensors_of_call(args, kwargs)}
    arguments = {position: paths[text] for position, text in places.items() if text in paths}
    numbers = {_name_of(path): number for number, path in enumerate(arguments.values())}
    sizes: dict[int, SizeOf] = {}
    weights: dict[int, str] = {}
    for position, text in places.items():
        base, is_size, dim = text.partition(".size()[")
        if is_size and base in numbers:
            sizes[position] = SizeOf(numbers[base], int(dim.rstrip("]")))
        elif text.startswith((f"L['{_LAYER}']", "G[")) and not is_size:
            weights[position] = text
        elif position not in arguments:
            raise UnshareableLayerError(f"reads {_readable(text)}, which is no plain argument")
    outputs = list(trace.outputs)
    if not all(isinstance(tensor, torch.Tensor) for tensor in outputs):
        raise UnshareableLayerError("has an output that is no tensor")
    _check_aliases([each for each in inputs if isinstance(each, torch.Tensor)], outputs)
    dynamic = {
        SizeOf(number, dim): int(inputs[position].shape[dim])
        for number, (position, path) in enumerate(arguments.items())
        for dim in ranges.get(path, ())
    }
    (cached,) = _debug_get_cache_entry_list(entry.__code__)
    artifact = LayerArtifact(
        form=form_of(args, kwargs, [*arguments.values()], result, outputs),
        paths=tuple(arguments.values()),
        inputs=tuple(
            _input_layout(inputs[position], number, dynamic)
            for number, position in enumerate(arguments)
        ),
        outputs=tuple(TensorLayout.of(tensor) for tensor in outputs),
        weights=weights,
        arguments=tuple(arguments),
        sizes=sizes,
        dynamic=dynamic,
        number_of_inputs=len(inputs),
        _graph=trace.graph,
        _guards=cached.guard_manager,
        _entry=entry,
        _aligned={position: _is_aligned(inputs[position]) for position in weights},
        _holders=trace.holders,
    )
    if (difference := artifact.difference(layer, args, kwargs)) is not None:
        raise UnshareableLayerError(f"changes what its own guards read: {difference}")
    return artifact


def _input_layout(tensor: torch.Tensor, number: int, dynamic: Mapping[SizeOf, int]) -> TensorLayout:
    layout = TensorLayout.of(tensor)
    places = [SizeOf(number, dim) for dim in range(tensor.dim())]
    if not any(place in dynamic for place in places):
        return layout
    shape = tuple(
        place if place in dynamic else size
        for place, size in zip(places, tensor.shape, strict=True)
    )
    return layout._replace(shape=shape, stride=None)  # the artifact checks its strides itself


def _places(
    trace: _Trace, inputs: Sequence[Any], call: tuple[Any, Any, Any], names: dict[str, Any]
) -> dict[int, str]:
    """Return where dynamo read each of *inputs*, as an expression, by position.

    A tensor is found by identity, and its place counts: two arguments may be the same tensor in
    this call, and others in the next one. Sizes are passed in dynamo's order.
    """
    layer, args, kwargs = call
    frame = {_LAYER: layer, "args": args, "kwargs": kwargs}
    texts: dict[int, str] = {}
    sizes: list[tuple[str, int]] = []
    for source in trace.sources:
        value = _evaluate(source.name, layer, names, frame)
        if isinstance(value, torch.Tensor):
            texts[id(value)] = source.name
        else:
            sizes.append((source.name, value))
    numbers = [each for each in inputs if not isinstance(each, torch.Tensor)]
    if numbers != [value for _, value in sizes]:
        raise UnshareableLayerError("has inputs that are neither tensors nor sizes of arguments")
    remaining = iter(sizes)
    places: dict[int, str] = {}
    for position, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            places[position] = next(remaining)[0]
            continue
        text = texts.get(id(value))
        if text is None:
            raise UnshareableLayerError(
                "has an input that is neither a tensor of the layer nor of the call"
            )
        if type(value) not in (torch.Tensor, nn.Parameter, nn.Buffer):
            raise UnshareableLayerError(f"has a {type(value).__name__} for {_readable(text)}")
        places[position] = text
    return places


def _name_of(path: Path) -> str:
    """Return dynamo's expression for an argument."""
    keys = "".join(f"[{key!r}]" for key in path[1:])
    return f"L['{('args', 'kwargs')[path[0]]}']{keys}"


def _check_aliases(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Refuse outputs that share memory with an input or with each other."""
    read = {tensor.untyped_storage().data_ptr() for tensor in inputs if tensor.numel()}
    for tensor in outputs:
        storage = tensor.untyped_storage().data_ptr()
        if tensor.numel() and storage in read:
            raise UnshareableLayerError(
                "returns memory that is also an argument, a weight or another output"
            )
        read.add(storage)


def _evaluate(
    text: str, layer: nn.Module, names: dict[str, Any], frame: Mapping[str, Any] | None = None
) -> Any:
    """Return the value of dynamo's expression *text* for *layer*.

    Raises:
        UnshareableLayerError: it is an expression that only dynamo can evaluate.
    """
    scope = {"L": frame if frame is not None else {_LAYER: layer}, "G": names}
    try:
        return eval(text, scope)  # noqa: S307  dynamo's own name for a place, made in this process
    except (NameError, KeyError, AttributeError, SyntaxError) as error:
        raise UnshareableLayerError(f"reads {text}, which is no plain place ({error})") from error


def _is_aligned(tensor: torch.Tensor) -> bool:
    return tensor.data_ptr() % _ALIGNMENT == 0


def _random_state(args: Any, kwargs: Any) -> list[bytes]:
    devices = {tensor.device for _, tensor in tensors_of_call(args, kwargs)}
    states = [torch.get_rng_state()]
    states += [torch.cuda.get_rng_state(each) for each in devices if each.type == "cuda"]
    return [state.numpy().tobytes() for state in states]


def _readable(text: str) -> str:
    """Return dynamo's expression or guard *text* without its notes, in the names of the layer."""
    short = " ".join(text.partition("#")[0].split())
    for long, plain in (
        (f"L['{_LAYER}']", _LAYER),
        ("L['args']", "args"),
        ("L['kwargs']", "kwargs"),
        ("_modules['", "["),
        ("_parameters['", "["),
        ("_buffers['", "["),
    ):
        short = short.replace(long, plain)
    for name in _bracketed(short):
        short = short.replace(f".[{name}']", f".{name}")
    return short


def _bracketed(text: str) -> Iterator[str]:
    for part in text.split(".[")[1:]:
        yield part.partition("']")[0]
