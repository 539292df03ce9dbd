"""`BucketArtifact`: serves the calls of one bucket by an artifact compiled at the first call."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from warmup.buckets.dims import DynamicDim, Interval, ShapePolicy
from warmup.core.errors import SizeError
from warmup.core.events import logger
from warmup.inductor.artifacts import (
    compile_entry,
    count_artifacts,
    drop_artifacts,
    graph_break_reason,
    with_own_code,
)
from warmup.serving.compiled.arguments import Arguments, TensorArgument
from warmup.serving.handle import installed

if TYPE_CHECKING:
    import torch


ServingCall = Callable[..., Any]


class DimChange(Protocol):
    """Makes another tensor from a tensor with the dynamic dim *dim*."""

    def __call__(self, tensor: torch.Tensor, dim: DynamicDim) -> torch.Tensor:
        """Return the other tensor."""


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
        """Return the uncompiled model, and count the call for *reason*.

        *message* is logged, and an event of the installed table, when the count is a power of two.

        Raises:
            SizeError: the model is served strictly.
        """
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

    def replace(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        change: DimChange,
    ) -> Arguments:
        """Return the arguments with each tensor changed that has a dynamic dim."""
        for argument in self.arguments:
            args, kwargs = argument.replace(args, kwargs, partial(change, dim=argument.dim))
        return args, kwargs

    def compile(self, entry: ServingCall, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return *entry* compiled, and its result for these arguments.

        Where the graph breaks, its parts are compiled, and the break is logged once.
        """
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
    """The artifact of one bucket, and the sizes that it serves, by name of the dim.

    ``call`` serves a call; the first call compiles.
    """

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
        """How many artifacts were compiled for this bucket."""
        return count_artifacts(self._entry)

    def drop_artifacts(self) -> None:
        """Drop the artifacts of this bucket: the next call compiles again."""
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

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[ServingCall, Any]:
        """Return the function that serves calls from now on, and the result of this call."""
        args, kwargs = self.marked(args, kwargs)
        compiled, result = self.served.compile(self._entry, args, kwargs)
        return compiled, result

    def marked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments with dims marked as dynamic, where the artifact is to have any."""
        return args, kwargs

    def compiling(self) -> AbstractContextManager[None]:
        """Return a context in which a compile has cache entries of its own, if it needs them."""
        return nullcontext()


def resized(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Return *tensor* with *size* elements in the dim *dim*, cut or repeated."""
    indices = torch.arange(size, device=tensor.device) % tensor.shape[dim]
    return tensor.index_select(dim, indices)


class UncompiledReason(StrEnum):
    """Why a call was served by the uncompiled model."""

    BEYOND = "beyond the last bucket"
    BETWEEN = "between two buckets"
    DEPENDENT = "dependent on padding"
