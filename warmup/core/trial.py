"""Trials: what is to be measured about one problem, and what came of it.

A trial is plain numbers and words, so that it can be handed to another process as JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from warmup.core.method import L2, Launch, Method
from warmup.core.rows import Family, Rejection, Winner
from warmup.core.samples import Samples

TimedCall = Callable[[int], object]  # makes call number i, on operand set i modulo their count
JsonObject = Mapping[str, Any]
Spec = JsonObject  # how to call one candidate; only `warmup.inductor` reads it


class Fill(StrEnum):
    """What an operand holds: random values of the normal distribution, or of its absolute."""

    NORMAL = "normal"
    POSITIVE = "positive"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: sizes and strides in elements, those before its first, and its torch dtype."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str
    fill: Fill = Fill.NORMAL

    @property
    def span(self) -> int:
        """Elements of memory from the first of the storage to the last of the tensor."""
        if 0 in self.sizes:
            return self.offset
        pairs = zip(self.sizes, self.strides, strict=True)
        return self.offset + 1 + sum((size - 1) * stride for size, stride in pairs)


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """What a library call is given: a view of the operand number ``base``."""

    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


# One argument of an operator: a number, a string, None, a list of arguments, or one of
# {"step": i}, {"input": i}, {"dtype": name}, {"memory_format": name}, {"device": true}.
Argument = Any


@dataclass(frozen=True, slots=True)
class Step:
    """One operator: its name below ``torch.ops``, such as ``aten.mm.default``, and arguments."""

    target: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]


@dataclass(frozen=True, slots=True)
class Region:
    """A GEMM and what is compiled with it: operators in order, and which results are wanted.

    The kernels beside a GEMM depend on which kernel computes it: a Triton template takes what
    follows into itself, a library call leaves it to a kernel of its own. A region is as much of a
    graph as it takes to see the difference. ``flops`` are the operations of each product in it, of
    the one that it is about first.
    """

    inputs: tuple[TensorSpec, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    flops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One choice and how to call it."""

    winner: Winner
    spec: Spec = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Everything that it takes to check and time the candidates for one key.

    ``operands`` are what templates are given, ``views`` what library calls are, ``out`` what both
    write. ``tolerance`` bounds the relative L2 error against the reference of ``op`` (with
    ``alpha`` and ``beta``); None checks nothing. ``library`` is the control.
    ``floor_us`` is the time at the measured peaks, ``doubtful_us`` one so far above it that it is
    measured again; None without peaks.

    With a ``region`` each candidate is timed as it will run: ``operands`` are the region's inputs,
    and the whole is compiled under the inductor options ``options`` with the candidate for ``key``
    and, for other products in it, with what is ``known`` to win there.
    """

    key: str
    op: str
    device: str
    operands: tuple[TensorSpec, ...]
    views: tuple[ViewSpec, ...]
    out: TensorSpec
    candidates: tuple[Candidate, ...]
    library: Winner
    method: Method
    alpha: float = 1
    beta: float = 1
    tolerance: float | None = None
    seed: int = 0
    floor_us: float | None = None
    doubtful_us: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    region: Region | None = None
    options: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    known: tuple[tuple[str, Winner], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one candidate: its times and error, or why it was rejected.

    ``error`` is the largest error of one element against the reference, in units of the
    reference's root mean square. ``said`` is what there is to say about a rejection. Only those
    that are final, timed as often as the winner, can win.
    """

    winner: Winner
    samples: Samples | None = None
    error: float | None = None
    rejection: Rejection | None = None
    said: str = ""
    is_final: bool = True

    @property
    def time_us(self) -> float | None:
        """The median time, None without one or when the candidate was rejected."""
        return None if self.samples is None or self.rejection else self.samples.median


class Operands(Protocol):
    """Operand sets of one trial; set numbers wrap around. Each method returns torch tensors."""

    count: int

    def operands(self, number: int) -> list[Any]:
        """Return the operands as templates take them."""

    def views(self, number: int) -> list[Any]:
        """Return the operands as library calls take them."""

    def out(self, number: int, *, at_offset: bool = False) -> Any:
        """Return the output tensor; at its offset for library calls."""

    def poison(self) -> None:
        """Fill every output with what no right result holds."""


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """Return *trial* as JSON values."""
    return dataclasses.asdict(trial)


def trial_from_json(found: Mapping[str, Any]) -> Trial:
    """Return the trial that `trial_to_json` wrote in another process of ours."""
    method = found["method"]
    return Trial(
        **{
            **found,
            "operands": tuple(_tensor(one) for one in found["operands"]),
            "views": tuple(
                ViewSpec(one["base"], *_shape(one), one["offset"]) for one in found["views"]
            ),
            "out": _tensor(found["out"]),
            "candidates": tuple(
                Candidate(_winner(one["winner"]), one["spec"]) for one in found["candidates"]
            ),
            "library": _winner(found["library"]),
            "method": Method(
                **{**method, "launch": Launch(method["launch"]), "l2": L2(method["l2"])}
            ),
            "known": tuple((key, _winner(one)) for key, one in found["known"]),
            "region": None if found["region"] is None else _region(found["region"]),
        }
    )


def _region(found: Mapping[str, Any]) -> Region:
    return Region(
        inputs=tuple(map(_tensor, found["inputs"])),
        steps=tuple(
            Step(one["target"], tuple(one["args"]), one["kwargs"]) for one in found["steps"]
        ),
        outputs=tuple(found["outputs"]),
        flops=tuple(found["flops"]),
    )


def _shape(found: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(found["sizes"]), tuple(found["strides"])


def _tensor(found: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(*_shape(found), found["offset"], found["dtype"], Fill(found["fill"]))


def _winner(found: Mapping[str, Any]) -> Winner:
    kwargs: Sequence[Any] = found["kwargs"]
    pairs = tuple((name, value) for name, value in kwargs)
    return Winner(Family(found["family"]), found["uid"], pairs, found["source_hash"])
