"""`LayerCompiler`: compiles one layer alone, and finds which of its inputs are weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from warmup.inductor.artifacts import graph_break_reason
from warmup.inductor.dynamic_dims import mark_range
from warmup.inductor.layers.artifact import LayerArtifact, is_aligned
from warmup.inductor.layers.form import Path, UnshareableLayerError, form_of, tensors_of_call
from warmup.inductor.layers.graph_constants import constants_of, drop_constants
from warmup.inductor.layers.opaque_call import SizeOf, TensorLayout
from warmup.inductor.layers.place import LAYER, readable, value_at
from warmup.inductor.layers.trace import LayerTrace, recording, tracing_backend

Ranges = Mapping[Path, Mapping[int, tuple[int, int]]]  # smallest and largest size by dim


class LayerCompiler:
    """Compiles one layer for one bucket in *mode*; its code object is named *name*.

    The forward alone is compiled, without the layer's own hooks. Where the first call ends before
    the graph runs (`warmup.inductor.deferred_kernels`), the next call goes on from there.
    """

    def __init__(self, mode: str | None, name: str) -> None:
        self._entry, self._trace = _entry(name), LayerTrace()
        backend = tracing_backend(self._trace, mode)
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
            artifact = _artifact_of(trace, self._entry, call, result, ranges)
            trace.tape = None  # holds weights; the backend keeps the trace
            return artifact
        finally:
            trace.inputs, trace.outputs = None, ()

    def _run(self, call: tuple[nn.Module, tuple[Any, ...], dict[str, Any]]) -> Any:
        """Return the result of *call*, the first run of what is compiled.

        Raises as `compile` does.
        """
        before = _random_state(*call[1:])
        self._trace.graph = None  # an earlier call may have ended before the graph ran
        try:
            with recording(self._trace):
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
    trace: LayerTrace,
    entry: Callable[..., Any],
    call: tuple[Any, Any, Any],
    result: Any,
    ranges: Ranges,
) -> LayerArtifact:
    layer, args, kwargs = call
    if trace.graph is None or trace.inputs is None:
        raise UnshareableLayerError("computes nothing that inductor compiles")
    inputs = trace.inputs
    frame = {LAYER: layer, "args": args, "kwargs": kwargs}
    trace.reads.keep_containers(lambda text: value_at(text, layer, entry.__globals__, frame))
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
        elif text.startswith((f"L['{LAYER}']", "G[")) and not is_size:
            weights[position] = text
        elif position not in arguments:
            raise UnshareableLayerError(f"reads {readable(text)}, which is no plain argument")
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
    packing = None if trace.tape is None else trace.tape.packing(constants_of(trace.graph))
    if packing is not None:
        drop_constants(trace.graph)
    read = {
        text: value_at(text, layer, entry.__globals__)
        for text in (*weights.values(), *(() if packing is None else packing.places()))
    }
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
        packing=packing,
        _read={text: (TensorLayout.of(each), is_aligned(each)) for text, each in read.items()},
        _reads=trace.reads,
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
    trace: LayerTrace, inputs: Sequence[Any], call: tuple[Any, Any, Any], names: dict[str, Any]
) -> dict[int, str]:
    """Return where dynamo read each of *inputs*, as an expression, by position.

    A tensor is found by identity, and its place counts: two arguments may be the same tensor in
    this call, and others in the next one. Sizes are passed in dynamo's order.
    """
    layer, args, kwargs = call
    frame = {LAYER: layer, "args": args, "kwargs": kwargs}
    texts: dict[int, str] = {}
    sizes: list[tuple[str, int]] = []
    for source in trace.sources:
        value = value_at(source.name, layer, names, frame)
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
            raise UnshareableLayerError(f"has a {type(value).__name__} for {readable(text)}")
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


def _random_state(args: Any, kwargs: Any) -> list[bytes]:
    devices = {tensor.device for _, tensor in tensors_of_call(args, kwargs)}
    states = [torch.get_rng_state()]
    states += [torch.cuda.get_rng_state(each) for each in devices if each.type == "cuda"]
    return [state.numpy().tobytes() for state in states]
