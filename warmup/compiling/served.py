"""The buckets of a model: what serves calls in each, compiled at the first one. Floor 2."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from warmup.agreement import worst_error
from warmup.axis import Axis, Interval, ShapePolicy
from warmup.compiling.call import Arguments, Place
from warmup.compiling.compiled import Outside
from warmup.errors import ModelError, SizeError
from warmup.events import logger
from warmup.inductor.artifacts import (
    apart,
    artifacts_of,
    break_in,
    caches_of,
    compile_apart,
    range_error,
)
from warmup.inductor.ranges import mark_range

Call = Callable[..., Any]


class Change(Protocol):
    """Makes a tensor of one that has *axis*."""

    def __call__(self, tensor: torch.Tensor, axis: Axis) -> torch.Tensor:
        """Return it."""


@dataclass
class Subject:
    """The model that is served, where its dynamic dims are, and what is known of it."""

    model: nn.Module
    places: tuple[Place, ...]
    policy: ShapePolicy
    mode: str | None
    tolerance: Mapping[str, float]
    is_strict: bool = False
    breaks: list[str] = field(default_factory=list)
    outside: Counter[Outside] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def without(self, why: Outside, said: str) -> Call:
        """Return the model as it is, uncompiled. *why* is counted, *said* is told now and then.

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
        return self.model

    def replace(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        change: Change,
    ) -> Arguments:
        """Return the arguments with each tensor that has an axis changed for it."""
        for place in self.places:
            args, kwargs = place.replace(args, kwargs, partial(change, axis=place.axis))
        return args, kwargs

    def compile(self, entry: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return *entry* compiled, and what it gave for these arguments.

        Where the graph breaks its parts are compiled, and the place is told once.
        """
        if not self.breaks:
            compiled = compile_apart(entry, self.mode, whole=True)
            try:
                return compiled, compiled(*args, **kwargs)
            except Exception as error:
                broken = break_in(error)
                if broken is None:
                    raise
                self.breaks.append(broken)
                logger.warning("the graph breaks, its parts are compiled: %s", broken)
        compiled = compile_apart(entry, self.mode, whole=False)
        return compiled, compiled(*args, **kwargs)


class Bucket:
    """The sizes that one artifact serves, by dim, and the artifact.

    ``call`` serves a call; it compiles first where nothing is compiled yet.
    """

    def __init__(self, subject: Subject, intervals: Mapping[str, Interval]) -> None:
        self.subject, self.intervals = subject, intervals
        self.sizes = {name: interval.high for name, interval in intervals.items()}
        self.call: Call = self._first
        self._lock = threading.Lock()
        name = "_".join(f"{name}_{size}" for name, size in self.sizes.items())
        self._entry = apart(subject.model, f"warmup_{name}")

    def __str__(self) -> str:
        return ",".join(f"{name}={interval}" for name, interval in self.intervals.items())

    @property
    def artifacts(self) -> int:
        """How many artifacts were compiled for it."""
        return artifacts_of(self._entry)

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            if self.call == self._first:
                call, result = self._compile(args, kwargs)
                self.call = call
                return result
        return self.call(*args, **kwargs)

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Call, Any]:
        """Return what serves calls from now on, and the result of this one."""
        compiled, result = self.subject.compile(self._entry, args, kwargs)
        return compiled, result


class RangeBucket(Bucket):
    """One dynamic artifact for the whole interval, chosen for its upper end."""

    _narrower: ModelError | None = None

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Call, Any]:
        made: set[int] = set()

        def mark(tensor: torch.Tensor, axis: Axis) -> torch.Tensor:
            interval = self.intervals[axis.name]
            if interval.low == interval.high:
                return tensor
            if id(tensor) not in made:
                tensor = tensor.detach()  # marks are attributes: the caller's tensor gets none
                made.add(id(tensor))
            mark_range(tensor, axis.dim, interval.low, interval.high, hint=interval.high)
            return tensor

        try:
            with caches_of(f"warmup-{self}"):
                return super()._compile(*self.subject.replace(args, kwargs, mark))
        except Exception as error:
            narrower = range_error(error, str(self))
            if narrower is None:
                raise
            self._narrower = narrower
            self.call = self._refuse
            raise narrower from error

    def _refuse(self, *_args: Any, **_kwargs: Any) -> Any:
        """Raise what compiling raised: it takes seconds, and would raise it again."""
        assert self._narrower is not None
        raise self._narrower


@dataclass(frozen=True, slots=True)
class _Cut:
    """One dim of one output, by number in the order of pytree, that is as long as an axis."""

    leaf: int
    dim: int
    axis: str


class PaddedBucket(Bucket):
    """One static artifact: inputs are padded with zeros to it, and outputs cut.

    The first call that is padded is computed uncompiled as well: which dims of the outputs are to
    be cut follows from it, and that the padding changes nothing but them.
    """

    _compiled: Call
    _dependent: str | None = None  # why padding is not served after all

    def __init__(self, subject: Subject, intervals: Mapping[str, Interval]) -> None:
        super().__init__(subject, intervals)
        self._cuts: dict[str, tuple[_Cut, ...]] = {}  # by axis, as far as seen

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Call, Any]:
        sizes = self._sizes(args, kwargs)
        compiled, result = super()._compile(*self._padded(args, kwargs))
        self._compiled = compiled
        return self._serve, self._cut(result, sizes, args, kwargs)

    def _serve(self, *args: Any, **kwargs: Any) -> Any:
        if self._dependent is not None:
            return self.subject.without(Outside.DEPENDENT, self._dependent)(*args, **kwargs)
        sizes = self._sizes(args, kwargs)
        if sizes == self.sizes:
            return self._compiled(*args, **kwargs)
        padded_args, padded_kwargs = self._padded(args, kwargs)
        return self._cut(self._compiled(*padded_args, **padded_kwargs), sizes, args, kwargs)

    def _sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for place in self.subject.places:
            size = place.find(args, kwargs).shape[place.axis.dim]
            if sizes.setdefault(place.axis.name, size) != size:
                raise ModelError(
                    f"a call has two sizes for {place.axis.name}: {sizes[place.axis.name]}, {size}",
                    "give dims of different sizes different names",
                )
        return sizes

    def _padded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        def pad(tensor: torch.Tensor, axis: Axis) -> torch.Tensor:
            missing = self.sizes[axis.name] - tensor.shape[axis.dim]
            if not missing:
                return tensor
            after = [0, 0] * (tensor.dim() - 1 - axis.dim) + [0, missing]
            return nn.functional.pad(tensor, after)

        return self.subject.replace(args, kwargs, pad)

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
        expected = self.subject.model(*args, **kwargs)
        cuts = _cuts_of(expected, result, sizes, self.sizes)
        distance, limit = worst_error(expected, _cut(result, cuts, sizes), self.subject.tolerance)
        if not distance <= limit:
            said = (
                f"padded to {self} the output is {distance:.2e} away from the unpadded one "
                f"(relative L2, limit {limit:.0e}): {', '.join(padded)} cannot be padded"
            )
            self._dependent = said
            return self._serve(*args, **kwargs)
        found = {name: tuple(cut for cut in cuts if cut.axis == name) for name in padded}
        self._cuts = {**known, **found}
        return _cut(result, cuts, sizes)


def _cuts_of(
    expected: Any, padded: Any, sizes: Mapping[str, int], full: Mapping[str, int]
) -> tuple[_Cut, ...]:
    """Return which dims of the outputs grew with which axis.

    Raises:
        ModelError: the outputs differ otherwise, or two axes could be meant.
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


def _cut(result: Any, cuts: Sequence[_Cut], sizes: Mapping[str, int]) -> Any:
    leaves, spec = torch.utils._pytree.tree_flatten(result)  # noqa: SLF001  no public name
    for cut in cuts:
        leaves[cut.leaf] = leaves[cut.leaf].narrow(cut.dim, 0, sizes[cut.axis])
    return torch.utils._pytree.tree_unflatten(leaves, spec)  # noqa: SLF001  as above


def _leaves(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)  # noqa: SLF001  as above
