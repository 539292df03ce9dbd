"""`Trial`: everything needed to check and time the candidates for one key, and `Outcome`.

Plain numbers and text, so that a trial can be sent to another process as JSON. No torch here: the
protocol `Operands` names tensors as `Any`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from warmup.core.method import Method
from warmup.core.rows import Rejection, Winner
from warmup.core.samples import Samples

TimedCall = Callable[[int], object]  # makes call number i, on operand set i modulo their count
JsonObject = Mapping[str, Any]
Spec = JsonObject  # how to call a candidate; only `warmup.inductor` reads it


class Fill(StrEnum):
    """The random values of an operand: normally distributed, or their absolute values."""

    NORMAL = "normal"
    POSITIVE = "positive"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to allocate: sizes, strides and storage offset in elements, and torch's dtype."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str
    fill: Fill = Fill.NORMAL

    @property
    def span(self) -> int:
        """The storage it needs, in elements: from the first one to the last that it uses."""
        if 0 in self.sizes:
            return self.offset
        pairs = zip(self.sizes, self.strides, strict=True)
        return self.offset + 1 + sum((size - 1) * stride for size, stride in pairs)


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """An argument of a library call, as a view of the operand number ``base``."""

    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


# An argument of an operator: a number, a string, None, a list of arguments, or an object with one
# of the members {"step": i}, {"item": [i, j]} for result j of step i, {"input": i},
# {"dtype": name}, {"memory_format": name}, {"device": true}.
Argument = Any


@dataclass(frozen=True, slots=True)
class Step:
    """A call of an operator, named below ``torch.ops`` such as ``aten.mm.default``."""

    target: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]


@dataclass(frozen=True, slots=True)
class Region:
    """A GEMM, or a reduction, with the operations that may be fused into it or what follows it.

    Which kernels run beside a GEMM depends on the GEMM's own kernel: a Triton template computes the
    operations that follow in the same kernel, a library call leaves them to another one. A region
    is the part of the graph that shows this difference. ``steps`` are in order, and ``outputs`` are
    the numbers of the steps whose results are returned. ``flops`` counts the operations of each
    GEMM in the region, that of the trial's own GEMM first.
    """

    inputs: tuple[TensorSpec, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    flops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice for the trial's key, and how to call it."""

    winner: Winner
    spec: Spec = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Everything needed to check and time the candidates for one key.

    Templates take ``operands``, library calls take ``views``, and both write ``out``.
    ``tolerance`` bounds the relative L2 error against the reference of ``op`` (with ``alpha``
    and ``beta``); None checks nothing. ``tolerances`` has those of other outputs, by torch's
    dtype. ``library`` is the control. ``floor_us`` is the time at the measured peaks; a time
    over ``doubtful_us`` is measured again. Both are None without peaks.

    With a ``region`` each candidate is timed in it: ``operands`` are then the region's inputs, and
    the region is compiled under the inductor options ``options``, with the candidate for ``key``
    and with the winners in ``known`` for the other GEMMs.
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
    tolerances: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    floor_us: float | None = None
    doubtful_us: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    region: Region | None = None
    options: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    known: tuple[tuple[str, Winner], ...] = ()


@dataclass(frozen=True, slots=True)
class RegionKernels:
    """What inductor compiled for a region with one candidate.

    ``count`` is how many kernels and library calls the generated code launches. ``spills`` and
    ``registers`` belong to the kernel with the candidate's template, for each thread. None where
    they could not be read. ``is_as_decided`` is false where inductor fused another way than the
    candidate, or the winner of another GEMM of the region, says.
    """

    count: int | None
    spills: int | None
    registers: int | None
    is_as_decided: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one candidate: its times and error, or why it was rejected.

    ``error`` is the largest error of an element against the reference, in units of the reference's
    root mean square. ``said`` is the text of a rejection. An outcome that is not final was timed in
    the screening only, and cannot win. ``host`` are the host's times to enqueue the call, None
    where they were not taken. ``kernels`` is None where no region was compiled.
    """

    winner: Winner
    samples: Samples | None = None
    error: float | None = None
    rejection: Rejection | None = None
    said: str = ""
    is_final: bool = True
    kernels: RegionKernels | None = None
    host: Samples | None = None

    @property
    def host_us(self) -> float | None:
        """The median of the host's times in microseconds, None without any."""
        return None if self.host is None else self.host.median

    @property
    def time_us(self) -> float | None:
        """The median time in microseconds, None when untimed or rejected."""
        return None if self.samples is None or self.rejection else self.samples.median


class Operands(Protocol):
    """The operand sets of a trial, as torch tensors; set numbers wrap around at ``count``."""

    count: int

    def operands(self, number: int) -> list[Any]:
        """Return the operands of a set as templates take them."""

    def views(self, number: int) -> list[Any]:
        """Return the operands of a set as library calls take them."""

    def out(self, number: int, *, at_offset: bool = False) -> Any:
        """Return the output tensor of a set; library calls take it *at_offset* in its storage."""

    def poison(self) -> None:
        """Fill every output with NaN or the largest integer, so that unwritten parts show."""


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """Return *trial* as JSON values, for `trial_from_json` in another process."""
    document: dict[str, Any] = msgspec.to_builtins(trial)
    return document


def trial_from_json(document: JsonObject) -> Trial:
    """Return the trial that `trial_to_json` wrote.

    Raises:
        msgspec.ValidationError: it is another document.
    """
    return msgspec.convert(document, Trial)
