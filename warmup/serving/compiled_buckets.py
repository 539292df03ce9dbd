"""`BucketArtifact`: serves the calls of one bucket by an artifact compiled at the first call.

`make_buckets` makes those of a ladder of sizes for each `ShapePolicy`, `warm_together` compiles
them, and `find_dims` says which dims of a model's inputs grow with a size.
"""

from __future__ import annotations

import inspect
import itertools
import math
import sys
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from warmup.core.buckets import Bucket, DynamicDim, Interval, ShapePolicy, intervals_of
from warmup.core.errors import ModelError, SettingsError, SizeError
from warmup.core.events import logger
from warmup.core.rows import GRAPH_MODES
from warmup.inductor.adapter import mark_range, mark_static
from warmup.inductor.cached_graphs import DeferredCompile, deferring_kernels
from warmup.inductor.caches import (
    compile_entry,
    count_artifacts,
    drop_artifacts,
    graph_break_reason,
    own_cache_entries,
    range_error,
    with_own_code,
)
from warmup.models.loading import Inputs
from warmup.models.outputs import noted_tensors, output_errors, worst_error, written
from warmup.serving.handle import installed
from warmup.table.schema import MOST_TIMES

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
Arguments = tuple[Args, Kwargs]
Change = Callable[[torch.Tensor, DynamicDim], torch.Tensor]  # makes another tensor for a dim
# An output by pytree order, its dim, and the name of the dynamic dim whose size it has.
Cut = tuple[int, int, str]
ServingCall = Callable[..., Any]
Sizes = Mapping[str, int]  # by name of the dim
FoundDims = dict[str, dict[int, str]]  # by name of the argument: its dims, and their names
CallFor = Callable[[Args, Kwargs], ServingCall]
_ROUNDED: Final = 1e-2  # of a number of the outputs, which may be computed from a narrow tensor


class UncompiledReason(StrEnum):
    """Why a call was served by the uncompiled model."""

    BEYOND = "beyond the last bucket"
    BETWEEN = "between two buckets"
    DEPENDENT = "dependent on padding"


class TensorArgument:
    """The tensor with the dynamic dim *dim* in each call of *model*.

    A SettingsError where forward has no such argument, a call has no tensor there, or the tensor
    has fewer dims.
    """

    def __init__(self, model: nn.Module, dim: DynamicDim) -> None:
        parameters = inspect.signature(model.forward).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        name = str(dim.path[0])
        if name not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise SettingsError(
                f"dims {dim}: forward has no argument {name!r}",
                f"name one of {', '.join(parameters)}",
            )
        self.dim = dim
        self._name, self._path = name, dim.path[1:]
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [key for key, parameter in parameters.items() if parameter.kind in positional]
        self._position = names.index(name) if name in names else sys.maxsize

    def find(self, args: Args, kwargs: Kwargs) -> torch.Tensor:
        try:
            value = args[self._position] if self._position < len(args) else kwargs[self._name]
            for part in self._path:
                value = value[part]
            value.shape[self.dim.dim]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"a call has no tensor with the dim {self.dim}", "pass it, or correct dims"
            ) from error
        tensor: torch.Tensor = value
        return tensor

    def replace(self, args: Args, kwargs: Kwargs, change: Change) -> Arguments:
        """Return the arguments with the tensor changed, in copies of its containers."""
        self.find(args, kwargs)
        if self._position < len(args):
            changed = self._replaced(args[self._position], self._path, change)
            return (*args[: self._position], changed, *args[self._position + 1 :]), kwargs
        changed = self._replaced(kwargs[self._name], self._path, change)
        return args, {**kwargs, self._name: changed}

    def _replaced(self, value: Any, path: Sequence[str | int], change: Change) -> Any:
        if not path:
            return change(value, self.dim)
        changed = self._replaced(value[path[0]], path[1:], change)
        if type(value) is dict:
            return {**value, path[0]: changed}
        if type(value) in (list, tuple):
            return type(value)(changed if i == path[0] else item for i, item in enumerate(value))
        raise SettingsError(
            f"dims {self.dim}: the tensor is in a {type(value).__name__}",
            "pass a dict, a list or a tuple",
        )


@dataclass
class ServedModel:
    """A model, the arguments with its dynamic dims, and the settings that all its buckets share.

    ``breaks`` has the graph breaks so far, ``uncompiled`` counts calls that no artifact served.
    """

    model: nn.Module
    arguments: tuple[TensorArgument, ...]
    policy: ShapePolicy
    mode: str | None
    tolerance: Mapping[str, float]
    is_strict: bool = False
    breaks: list[str] = field(default_factory=list)
    uncompiled: Counter[UncompiledReason] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def without_artifact(self, reason: UncompiledReason, message: str) -> ServingCall:
        """Return the uncompiled model, counted, told at powers of two; a SizeError if strict."""
        if self.is_strict:
            raise SizeError(message, "send sizes that a bucket serves, or add a bucket")
        with self._lock:
            self.uncompiled[reason] += 1
            count = self.uncompiled[reason]
        if count & (count - 1) == 0:
            logger.warning("%s: served uncompiled (%d calls so far)", message, count)
            handle = installed()
            if handle is not None:
                handle.outside(reason.name.lower(), message, count)
        return self.model

    def replace(self, args: Args, kwargs: Kwargs, change: Change) -> Arguments:
        for argument in self.arguments:
            args, kwargs = argument.replace(args, kwargs, change)
        return args, kwargs

    def compile(self, entry: ServingCall, args: Args, kwargs: Kwargs) -> tuple[ServingCall, Any]:
        """Return *entry* compiled, in parts where its graph breaks, and its result here."""
        if not self.breaks:
            compiled = compile_entry(entry, self.mode, whole=True)
            try:
                return compiled, compiled(*args, **kwargs)
            except Exception as error:
                graph_break = graph_break_reason(error)
                if graph_break is None:
                    raise
                self.breaks.append(graph_break)
                logger.warning("the graph breaks, its parts are compiled: %s", graph_break)
        compiled = compile_entry(entry, self.mode, whole=False)
        return compiled, compiled(*args, **kwargs)


class BucketArtifact:
    """The artifact of one bucket, which ``call`` compiles first, and the sizes that it serves."""

    def __init__(self, served: ServedModel, intervals: Mapping[str, Interval]) -> None:
        self.served, self.intervals = served, intervals
        self.sizes = {name: interval.high for name, interval in intervals.items()}
        self.call: ServingCall = self._first
        self._lock = threading.Lock()
        name = "_".join(f"{name}_{size}" for name, size in self.sizes.items())
        self._name = f"warmup_{name}"
        self._entry = with_own_code(served.model, self._name)

    def __str__(self) -> str:
        return ",".join(f"{name}={interval}" for name, interval in self.intervals.items())

    @property
    def artifacts(self) -> int:
        return count_artifacts(self._entry)

    def drop_artifacts(self) -> None:
        with self._lock:
            drop_artifacts(self._entry)
            self.call = self._first

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock, self.compiling():
            if self.call == self._first:
                call, result = self._compile(args, kwargs)
                self.call = call
                return result
        return self.call(*args, **kwargs)

    def _compile(self, args: Args, kwargs: Kwargs) -> tuple[ServingCall, Any]:
        return self.served.compile(self._entry, *self.marked(args, kwargs))

    def marked(self, args: Args, kwargs: Kwargs) -> Arguments:
        return args, kwargs

    def compiling(self) -> AbstractContextManager[None]:
        return nullcontext()


def resized(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    indices = torch.arange(size, device=tensor.device) % tensor.shape[dim]
    return tensor.index_select(dim, indices)


Place = tuple[str | int, ...]  # of a tensor in the arguments of a call


class StaticInput:
    """Memory for a tensor like *tensor* with *sizes* by dim, where `fill` puts smaller ones."""

    def __init__(self, tensor: torch.Tensor, sizes: Mapping[int, int]) -> None:
        after = [0, 0] * tensor.dim()
        for dim, size in sizes.items():
            after[2 * (tensor.dim() - 1 - dim) + 1] = size - tensor.shape[dim]
        # A tensor made in inference mode could not be written outside of it.
        with torch.inference_mode(mode=False), torch.no_grad():
            self.tensor = nn.functional.pad(tensor.detach(), after)
        self._filled = {dim: int(tensor.shape[dim]) for dim in sizes}
        mark_static(self.tensor)

    def fill(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy *tensor* into the memory, set what is beyond its sizes to zero; return it all."""
        part = self.tensor
        for dim, before in self._filled.items():
            size = tensor.shape[dim]
            if size < before:
                self.tensor.narrow(dim, size, before - size).zero_()
            self._filled[dim] = size
            part = part.narrow(dim, 0, size)
        part.copy_(tensor.detach())
        return self.tensor


class StaticInputs(threading.local):
    """The static inputs of one graph, for each thread that calls it."""

    def __init__(self) -> None:
        self._inputs: dict[Any, StaticInput] = {}

    def fill(self, tensor: torch.Tensor, place: Place, sizes: Mapping[int, int]) -> torch.Tensor:
        """Return *tensor*, the argument at *place*, padded with zeros to *sizes* by dim.

        What is returned is overwritten by the next tensor at this place in the same thread.
        """
        others = [size for dim, size in enumerate(tensor.shape) if dim not in sizes]
        key = (place, tensor.dtype, tensor.device, *others)
        static = self._inputs.get(key)
        if static is None:
            static = self._inputs[key] = StaticInput(tensor, sizes)
            return static.tensor
        return tensor if tensor is static.tensor else static.fill(tensor)


class PaddedArtifact(BucketArtifact):
    """A static artifact, for which inputs are padded with zeros and outputs cut.

    The first padded call is computed by the uncompiled model as well: the two outputs, and what the
    model writes, show which dims have to be cut, and whether padding changes anything else. In a
    mode that records CUDA graphs, inputs on a GPU are padded where the graph reads them.
    """

    _compiled: ServingCall
    _dependent: str | None = None  # why this bucket is served uncompiled

    def __init__(self, served: ServedModel, intervals: Mapping[str, Interval]) -> None:
        super().__init__(served, intervals)
        self._cuts: dict[str, tuple[Cut, ...]] = {}  # by dim, for dims padded so far
        self._static = StaticInputs() if served.mode in GRAPH_MODES else None
        self._sizes_at: dict[Place, dict[int, int]] = {}  # of each tensor with a dynamic dim
        for argument in served.arguments:
            dim = argument.dim
            self._sizes_at.setdefault(dim.path, {})[dim.dim] = self.sizes[dim.name]

    def _compile(self, args: Args, kwargs: Kwargs) -> tuple[ServingCall, Any]:
        sizes = self._sizes(args, kwargs)
        padded_args, padded_kwargs = self._padded(args, kwargs)
        self._compiled, result = super()._compile(padded_args, padded_kwargs)
        return self._serve, self._cut(result, sizes, args, kwargs)

    def compiling(self) -> AbstractContextManager[None]:
        """Return a context in which no other artifact loads a graph of static inputs from a cache.

        torch 2.11 leaves them out of the cache's key
        (torch/_functorch/_aot_autograd/autograd_cache.py), and a CUDA graph that took other inputs
        for static would be recorded again for each address.
        """
        return nullcontext() if self._static is None else own_cache_entries("warmup-static")

    def _serve(self, *args: Any, **kwargs: Any) -> Any:
        if self._dependent is not None:
            uncompiled = self.served.without_artifact(UncompiledReason.DEPENDENT, self._dependent)
            return uncompiled(*args, **kwargs)
        sizes = self._sizes(args, kwargs)
        if sizes == self.sizes and self._static is None:
            return self._compiled(*args, **kwargs)
        padded_args, padded_kwargs = self._padded(args, kwargs)
        return self._cut(self._compiled(*padded_args, **padded_kwargs), sizes, args, kwargs)

    def _sizes(self, args: Args, kwargs: Kwargs) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for argument in self.served.arguments:
            name = argument.dim.name
            size = argument.find(args, kwargs).shape[argument.dim.dim]
            if sizes.setdefault(name, size) != size:
                raise ModelError(
                    f"a call has two sizes for {name}: {sizes[name]}, {size}",
                    "give dims of different sizes different names",
                )
        return sizes

    def _padded(self, args: Args, kwargs: Kwargs) -> Arguments:
        def pad(tensor: torch.Tensor, dim: DynamicDim) -> torch.Tensor:
            if self._static is not None and tensor.is_cuda:
                return self._static.fill(tensor, dim.path, self._sizes_at[dim.path])
            missing = self.sizes[dim.name] - tensor.shape[dim.dim]
            if not missing:
                return tensor
            after = [0, 0] * (tensor.dim() - 1 - dim.dim) + [0, missing]
            return nn.functional.pad(tensor, after)

        return self.served.replace(args, kwargs, pad)

    def _cut(self, result: Any, sizes: Sizes, args: Args, kwargs: Kwargs) -> Any:
        if sizes == self.sizes:
            return result
        padded = [name for name, size in sizes.items() if size != self.sizes[name]]
        known = self._cuts
        if all(name in known for name in padded):
            return _cut(result, [cut for name in padded for cut in known[name]], sizes)
        noted = noted_tensors(self.served.model, [(args, kwargs)])
        expected = self.served.model(*args, **kwargs)
        cuts = _cuts_of(expected, result, sizes, self.sizes)
        reason = _unlike(expected, result)
        if reason is None and (names := written(noted)):
            reason = f"a call writes other values into {', '.join(names)}"
        if reason is not None:
            self._dependent = f"padded to {self} {reason}: {', '.join(padded)} cannot be padded"
            return self._serve(*args, **kwargs)
        distance, limit = worst_error(expected, _cut(result, cuts, sizes), self.served.tolerance)
        if not distance <= limit:  # as far as compiling moves it, as a build judges
            padded_args, padded_kwargs = self._padded(args, kwargs)
            uncompiled = self.served.model(*padded_args, **padded_kwargs)
            errors = output_errors(uncompiled, result)
            limit = max(limit, MOST_TIMES * max(errors, default=0.0))
        if not distance <= limit:
            self._dependent = (
                f"padded to {self} the output is {distance:.2e} away from the unpadded one "
                f"(relative L2, limit {limit:.0e}): {', '.join(padded)} cannot be padded"
            )
            return self._serve(*args, **kwargs)
        new = {name: tuple(cut for cut in cuts if cut[2] == name) for name in padded}
        self._cuts = {**known, **new}
        return _cut(result, cuts, sizes)


def _cuts_of(expected: Any, padded: Any, sizes: Sizes, full: Sizes) -> tuple[Cut, ...]:
    cuts: list[Cut] = []
    pairs = zip(tree_leaves(expected), tree_leaves(padded), strict=True)
    for number, (own, grown) in enumerate(pairs):
        if not isinstance(own, torch.Tensor):
            continue
        for dim, (small, large) in enumerate(zip(own.shape, grown.shape, strict=True)):
            if small == large:
                continue
            names = [n for n, size in sizes.items() if (size, full[n]) == (small, large)]
            if len(names) != 1:
                raise ModelError(
                    f"output {number}, dim {dim}: {large} where it is {small} unpadded, which "
                    f"{'two dims explain' if names else 'no dynamic dim explains'}",
                    "use the policy range",
                )
            cuts.append((number, dim, names[0]))
    return tuple(cuts)


def _unlike(expected: Any, padded: Any) -> str | None:
    pairs = zip(tree_leaves(expected), tree_leaves(padded), strict=True)
    for number, (own, other) in enumerate(pairs):
        if isinstance(own, (bool, int, str)) and own != other:
            return f"the output {number} is {other!r}, and {own!r} unpadded"
        if isinstance(own, float) and not math.isclose(own, other, rel_tol=_ROUNDED, abs_tol=1e-9):
            return f"the output {number} is {other:g}, and {own:g} unpadded"
    return None


def _cut(result: Any, cuts: Sequence[Cut], sizes: Sizes) -> Any:
    leaves, spec = tree_flatten(result)
    for leaf, dim, name in cuts:
        leaves[leaf] = leaves[leaf].narrow(dim, 0, sizes[name])
    return tree_unflatten(leaves, spec)


class RangeArtifact(BucketArtifact):
    """A dynamic artifact for a whole interval, its kernels chosen for the upper end."""

    def _compile(self, args: Args, kwargs: Kwargs) -> tuple[ServingCall, Any]:
        try:
            return super()._compile(args, kwargs)
        except Exception as error:
            too_wide = range_error(error, str(self))
            if too_wide is None:
                raise

            def refuse(*_args: Any, **_kwargs: Any) -> Any:
                raise too_wide

            self.call = refuse
            raise too_wide from error

    def marked(self, args: Args, kwargs: Kwargs) -> Arguments:
        aliases: set[int] = set()

        def mark(tensor: torch.Tensor, dim: DynamicDim) -> torch.Tensor:
            interval = self.intervals[dim.name]
            if interval.low == interval.high:
                return tensor
            if id(tensor) not in aliases:
                tensor = tensor.detach()  # marks are attributes: the caller's tensor gets none
                aliases.add(id(tensor))
            mark_range(tensor, dim.dim, interval.low, interval.high, hint=interval.high)
            return tensor

        return self.served.replace(args, kwargs, mark)

    def compiling(self) -> AbstractContextManager[None]:
        """Return a context in which other ranges, whatever their dims' names, are other entries."""
        dims = (argument.dim for argument in self.served.arguments)
        texts = (
            f"{'.'.join(map(str, dim.path))}[{dim.dim}]={self.intervals[dim.name]}" for dim in dims
        )
        return own_cache_entries(f"warmup-{','.join(sorted(texts))}")


_ARTIFACTS: Final = {ShapePolicy.RANGE: RangeArtifact, ShapePolicy.PAD: PaddedArtifact}


def make_buckets(
    served: ServedModel, sizes: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[BucketArtifact, ...], CallFor]:
    """Return the buckets of *sizes*, and what serves a call by the first dim of each name."""
    is_exact, is_range = (served.policy is each for each in (ShapePolicy.EXACT, ShapePolicy.RANGE))
    intervals = {
        name: intervals_of(ends) if is_range else [Interval(size, size) for size in ends]
        for name, ends in sizes.items()
    }
    kind = _ARTIFACTS.get(served.policy, BucketArtifact)
    combined = itertools.product(*intervals.values())
    buckets = tuple(kind(served, dict(zip(intervals, each, strict=True))) for each in combined)
    first: dict[str, TensorArgument] = {}
    for argument in served.arguments:
        first.setdefault(argument.dim.name, argument)
    highs = {name: [each.high for each in own] for name, own in intervals.items()}
    reads = [(name, first[name].find, first[name].dim.dim, highs[name]) for name in sizes]

    def call_for(args: Args, kwargs: Kwargs) -> Callable[..., Any]:
        number = 0
        for name, find, dim, ends in reads:
            size = find(args, kwargs).shape[dim]
            index = bisect_left(ends, size)
            if index == len(ends) or not size:
                message = f"{name}={size}: outside of 1..{ends[-1]}"
                return served.without_artifact(UncompiledReason.BEYOND, message)
            if is_exact and ends[index] != size:
                message = f"{name}={size}: no bucket"
                return served.without_artifact(UncompiledReason.BETWEEN, message)
            number = number * len(ends) + index
        return buckets[number].call

    return buckets, call_for


def warm_together(calls: Mapping[BucketArtifact, Callable[[], object]]) -> None:
    """Compile each bucket with its call of *calls*, and call it."""
    # Dynamo traces one graph at a time. First every bucket is traced, to the first that cannot be,
    # and its kernels go to inductor's workers; then each is called as soon as its own are compiled.
    # One whose kernels fail loses its artifact; the first error has a note that names the bucket.
    pending: dict[BucketArtifact, DeferredCompile] = {}
    failed: list[tuple[BucketArtifact, Exception]] = []
    with deferring_kernels() as deferred:
        for bucket, call in calls.items():
            try:
                pending[bucket] = deferred.compile(call)
            except Exception as error:  # noqa: BLE001  raised below, when the others are done
                failed.append((bucket, error))
                break
    for bucket, kernels in pending.items():
        try:
            kernels.finish()
        except Exception as error:  # noqa: BLE001  as above
            bucket.drop_artifacts()
            failed.append((bucket, error))
        else:
            calls[bucket]()
    if failed:
        bucket, first = failed[0]
        first.add_note(f"while the bucket {bucket} was compiled")
        raise first


def find_dims(
    model: nn.Module, make_inputs: Callable[[Bucket], Inputs], bucket: Bucket
) -> FoundDims:
    """Return the ``dims`` of `warmup.compile`: those that are equal to a size of *bucket*."""
    dims: FoundDims = {}
    shapes = _shapes(model, make_inputs(bucket))
    for name, size in bucket.sizes:
        other = 1 if size > 1 else 2
        other_shapes = _shapes(model, make_inputs(bucket.at({name: other})))
        ranks, others = (
            {path: len(shape) for path, shape in each.items()} for each in (shapes, other_shapes)
        )
        if ranks != others:
            raise ModelError(f"the inputs for {name}={size} and {name}={other} are not alike")
        grown = [
            (path, dim, pair)
            for path, shape in shapes.items()
            for dim, pair in enumerate(zip(shape, other_shapes[path], strict=True))
            if pair[0] != pair[1]
        ]
        for path, dim, pair in grown:
            if pair != (size, other):
                raise ModelError(
                    f"input {path}, dim {dim} is {pair[0]} where {name}={size}, and {pair[1]} "
                    f"where {name}={other}",
                    "only dims of that size itself can have a range: use exact buckets",
                )
            dims.setdefault(path, {})[dim] = name
        if not grown:
            raise ModelError(f"no input grows with {name}", "name the dims that the inputs have")
    return dims


def _shapes(model: nn.Module, inputs: Inputs) -> dict[str, tuple[int, ...]]:
    try:
        named = inspect.signature(model.forward).bind_partial(*inputs.args).arguments
    except TypeError as error:
        raise ModelError(f"forward does not take the inputs made for it ({error})") from error
    return dict(_walk({**named, **inputs.kwargs}, ""))


def _walk(value: Any, path: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    if isinstance(value, torch.Tensor):
        yield path.removeprefix("."), tuple(value.shape)
    elif isinstance(value, (Mapping, list, tuple)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            yield from _walk(inner, f"{path}.{key}")
