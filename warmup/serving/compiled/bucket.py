"""The buckets of a model: what serves calls in each, compiled at the first one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from warmup.buckets.dims import DynamicDim, Interval, ShapePolicy
from warmup.core.errors import ModelError, SizeError
from warmup.core.events import logger
from warmup.inductor.artifacts import (
    compile_entry,
    count_artifacts,
    drop_artifacts,
    graph_break_reason,
    own_cache_entries,
    range_error,
    with_own_code,
)
from warmup.inductor.dynamic_dims import mark_range
from warmup.serving.compiled.arguments import Arguments, TensorArgument
from warmup.serving.install import installed

if TYPE_CHECKING:
    import torch


ServingCall = Callable[..., Any]


class DimChange(Protocol):
    """Makes a tensor of one that has *axis*."""

    def __call__(self, tensor: torch.Tensor, axis: DynamicDim) -> torch.Tensor:
        """Return it."""


@dataclass
class Subject:
    """The model that is served, where its dynamic dims are, and what is known of it."""

    model: nn.Module
    places: tuple[TensorArgument, ...]
    policy: ShapePolicy
    mode: str | None
    tolerance: Mapping[str, float]
    is_strict: bool = False
    breaks: list[str] = field(default_factory=list)
    outside: Counter[Outside] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def without(self, why: Outside, said: str) -> ServingCall:
        """Return the model as it is, uncompiled.

        *why* is counted; *said* is told now and then, as an event of the installed table too.

        Raises:
            SizeError: the model is served strictly.
        """
        if self.is_strict:
            raise SizeError(said, "send sizes that a bucket serves, or add a bucket")
        with self._lock:
            self.outside[why] += 1
            count = self.outside[why]
        if count & (count - 1) == 0:  # the first call, the second, the fourth and so on
            logger.warning("%s: served uncompiled (%d calls so far)", said, count)
            handle = installed()
            if handle is not None:
                handle.outside(why.name.lower(), said, count)
        return self.model

    def replace(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        change: DimChange,
    ) -> Arguments:
        """Return the arguments with each tensor that has an axis changed for it."""
        for place in self.places:
            args, kwargs = place.replace(args, kwargs, partial(change, axis=place.axis))
        return args, kwargs

    def compile(self, entry: ServingCall, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return *entry* compiled, and what it gave for these arguments.

        Where the graph breaks its parts are compiled, and the place is told once.
        """
        if not self.breaks:
            compiled = compile_entry(entry, self.mode, whole=True)
            try:
                return compiled, compiled(*args, **kwargs)
            except Exception as error:
                broken = graph_break_reason(error)
                if broken is None:
                    raise
                self.breaks.append(broken)
                logger.warning("the graph breaks, its parts are compiled: %s", broken)
        compiled = compile_entry(entry, self.mode, whole=False)
        return compiled, compiled(*args, **kwargs)


class BucketArtifact:
    """The sizes that one artifact serves, by dim, and the artifact.

    ``call`` serves a call; it compiles first where nothing is compiled yet.
    """

    def __init__(self, subject: Subject, intervals: Mapping[str, Interval]) -> None:
        self.subject, self.intervals = subject, intervals
        self.sizes = {name: interval.high for name, interval in intervals.items()}
        self.call: ServingCall = self._first
        self._lock = threading.Lock()
        name = "_".join(f"{name}_{size}" for name, size in self.sizes.items())
        self._entry = with_own_code(subject.model, f"warmup_{name}")

    def __str__(self) -> str:
        return ",".join(f"{name}={interval}" for name, interval in self.intervals.items())

    @property
    def artifacts(self) -> int:
        """How many artifacts were compiled for it."""
        return count_artifacts(self._entry)

    def forget(self) -> None:
        """Drop what was compiled for it: the next call compiles again."""
        with self._lock:
            drop_artifacts(self._entry)
            self.call = self._first

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            if self.call == self._first:
                call, result = self._compile(args, kwargs)
                self.call = call
                return result
        return self.call(*args, **kwargs)

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[ServingCall, Any]:
        """Return what serves calls from now on, and the result of this one."""
        compiled, result = self.subject.compile(self._entry, args, kwargs)
        return compiled, result


class RangeArtifact(BucketArtifact):
    """One dynamic artifact for the whole interval, chosen for its upper end."""

    _narrower: ModelError | None = None

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[ServingCall, Any]:
        made: set[int] = set()

        def mark(tensor: torch.Tensor, axis: DynamicDim) -> torch.Tensor:
            interval = self.intervals[axis.name]
            if interval.low == interval.high:
                return tensor
            if id(tensor) not in made:
                tensor = tensor.detach()  # marks are attributes: the caller's tensor gets none
                made.add(id(tensor))
            mark_range(tensor, axis.dim, interval.low, interval.high, hint=interval.high)
            return tensor

        try:
            with own_cache_entries(f"warmup-{self._ranges()}"):
                return super()._compile(*self.subject.replace(args, kwargs, mark))
        except Exception as error:
            narrower = range_error(error, str(self))
            if narrower is None:
                raise
            self._narrower = narrower
            self.call = self._refuse
            raise narrower from error

    def _ranges(self) -> str:
        """Return the interval of each axis, the same whatever the dims are called."""
        axes = (place.axis for place in self.subject.places)
        spelled = (
            f"{'.'.join(map(str, axis.path))}[{axis.dim}]={self.intervals[axis.name]}"
            for axis in axes
        )
        return ",".join(sorted(spelled))

    def _refuse(self, *_args: Any, **_kwargs: Any) -> Any:
        """Raise what compiling raised: it takes seconds, and would raise it again."""
        assert self._narrower is not None
        raise self._narrower


class Outside(StrEnum):
    """Why no artifact served a call."""

    BEYOND = "beyond the last bucket"
    BETWEEN = "between two buckets"
    DEPENDENT = "dependent on padding"
