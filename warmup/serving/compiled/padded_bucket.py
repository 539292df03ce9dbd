"""`PaddedArtifact`: serves a bucket by padding inputs to its sizes and cutting the outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from warmup.buckets.dims import DynamicDim, Interval
from warmup.core.compile_modes import GRAPH_MODES
from warmup.core.errors import ModelError
from warmup.inductor.artifacts import own_cache_entries
from warmup.inductor.static_inputs import Place, StaticInputs
from warmup.models.call_state import noted_tensors, written
from warmup.models.outputs import output_errors, worst_error
from warmup.serving.compiled.arguments import Arguments
from warmup.serving.compiled.bucket import (
    BucketArtifact,
    ServedModel,
    ServingCall,
    UncompiledReason,
)
from warmup.table.policy import MOST_TIMES

_ROUNDED: Final = 1e-2  # of a number of the outputs, which may be computed from a narrow tensor


@dataclass(frozen=True, slots=True)
class _Cut:
    """Dim ``dim`` of the output ``leaf``, by pytree order: it has the size of the dim ``name``."""

    leaf: int
    dim: int
    name: str


class PaddedArtifact(BucketArtifact):
    """A static artifact, for which inputs are padded with zeros and outputs cut.

    The first padded call is computed by the uncompiled model as well. The two outputs show which
    dims have to be cut, and whether padding changes anything else; so do the buffers and inputs
    that the model writes.

    In a mode that records CUDA graphs, inputs on a GPU are padded where the graph reads them.
    """

    _compiled: ServingCall
    _dependent: str | None = None  # why this bucket is served uncompiled

    def __init__(self, served: ServedModel, intervals: Mapping[str, Interval]) -> None:
        super().__init__(served, intervals)
        self._cuts: dict[str, tuple[_Cut, ...]] = {}  # by dim, for dims padded so far
        self._static = StaticInputs() if served.mode in GRAPH_MODES else None
        self._sizes_at: dict[Place, dict[int, int]] = {}  # of each tensor with a dynamic dim
        for argument in served.arguments:
            dim = argument.dim
            self._sizes_at.setdefault(dim.path, {})[dim.dim] = self.sizes[dim.name]

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[ServingCall, Any]:
        sizes = self._sizes(args, kwargs)
        padded_args, padded_kwargs = self._padded(args, kwargs)
        self._compiled, result = super()._compile(padded_args, padded_kwargs)
        return self._serve, self._cut(result, sizes, args, kwargs)

    def compiling(self) -> AbstractContextManager[None]:
        """Return a context in which no other artifact loads a graph of static inputs from a cache.

        torch 2.11 leaves them out of the cache's key (torch/_functorch/_aot_autograd/
        autograd_cache.py), and a CUDA graph that took other inputs for static would be recorded
        again for each address.
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

    def _sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
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

    def _padded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        def pad(tensor: torch.Tensor, dim: DynamicDim) -> torch.Tensor:
            if self._static is not None and tensor.is_cuda:
                return self._static.fill(tensor, dim.path, self._sizes_at[dim.path])
            missing = self.sizes[dim.name] - tensor.shape[dim.dim]
            if not missing:
                return tensor
            after = [0, 0] * (tensor.dim() - 1 - dim.dim) + [0, missing]
            return nn.functional.pad(tensor, after)

        return self.served.replace(args, kwargs, pad)

    def _cut(
        self,
        result: Any,
        sizes: Mapping[str, int],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if sizes == self.sizes:
            return result
        padded = [name for name, size in sizes.items() if size != self.sizes[name]]
        known = self._cuts
        if all(name in known for name in padded):
            return _cut(result, [cut for name in padded for cut in known[name]], sizes)
        noted = noted_tensors(self.served.model, [(args, kwargs)])
        expected = self.served.model(*args, **kwargs)
        cuts = _cuts_of(expected, result, sizes, self.sizes)
        if (reason := _unlike(expected, result) or _writing(written(noted))) is not None:
            self._dependent = f"padded to {self} {reason}: {', '.join(padded)} cannot be padded"
            return self._serve(*args, **kwargs)
        distance, limit = worst_error(expected, _cut(result, cuts, sizes), self.served.tolerance)
        if not distance <= limit:
            limit = max(limit, self._rounding(result, args, kwargs))
        if not distance <= limit:
            self._dependent = (
                f"padded to {self} the output is {distance:.2e} away from the unpadded one "
                f"(relative L2, limit {limit:.0e}): {', '.join(padded)} cannot be padded"
            )
            return self._serve(*args, **kwargs)
        new = {name: tuple(cut for cut in cuts if cut.name == name) for name in padded}
        self._cuts = {**known, **new}
        return _cut(result, cuts, sizes)

    def _rounding(self, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
        """Return how far *result* may be from the unpadded output without an effect of padding.

        That is the limit of a build's judgement, from its distance to the uncompiled model for the
        same padded inputs: a server may not have the memory for a run in higher precision.
        """
        padded_args, padded_kwargs = self._padded(args, kwargs)
        uncompiled = self.served.model(*padded_args, **padded_kwargs)
        return MOST_TIMES * max(output_errors(uncompiled, result), default=0.0)


def _cuts_of(
    expected: Any, padded: Any, sizes: Mapping[str, int], full: Mapping[str, int]
) -> tuple[_Cut, ...]:
    """Return the dims of the outputs that padding made longer, each with its dynamic dim.

    Raises:
        ModelError: no dynamic dim, or more than one, explains the length of an output's dim.
    """
    cuts: list[_Cut] = []
    pairs = zip(_leaves(expected), _leaves(padded), strict=True)
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
            cuts.append(_Cut(number, dim, names[0]))
    return tuple(cuts)


def _unlike(expected: Any, padded: Any) -> str | None:
    """Return which number or text of the outputs padding changed; None where it changed none."""
    for number, (own, other) in enumerate(zip(_leaves(expected), _leaves(padded), strict=True)):
        if isinstance(own, (bool, int, str)) and own != other:
            return f"the output {number} is {other!r}, and {own!r} unpadded"
        if isinstance(own, float) and not math.isclose(own, other, rel_tol=_ROUNDED, abs_tol=1e-9):
            return f"the output {number} is {other:g}, and {own:g} unpadded"
    return None


def _writing(names: Sequence[str]) -> str | None:
    return f"a call writes other values into {', '.join(names)}" if names else None


def _cut(result: Any, cuts: Sequence[_Cut], sizes: Mapping[str, int]) -> Any:
    leaves, spec = torch.utils._pytree.tree_flatten(result)  # noqa: SLF001  no public name
    for cut in cuts:
        leaves[cut.leaf] = leaves[cut.leaf].narrow(cut.dim, 0, sizes[cut.name])
    return torch.utils._pytree.tree_unflatten(leaves, spec)  # noqa: SLF001  as above


def _leaves(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)  # noqa: SLF001  as above
