"""One layer at one shape: every backend made, checked, and timed in turn.

A backend that fails is left out there, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from warmup.bench.layers.backends import operator_of
from warmup.bench.layers.layers import Layer, Operator, Rows
from warmup.bench.layers.operands import LayerOperands
from warmup.bench.layers.report import LayerCell, Pass
from warmup.bench.reasons import reason_of
from warmup.core.errors import BuildError
from warmup.core.method import L2, Launch
from warmup.core.samples import Samples
from warmup.measuring.clock import Batch, batch_of
from warmup.measuring.rounds import run_rounds
from warmup.models.loading import parse_dtype
from warmup.table.policy import TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSetup:
    """How everything is timed."""

    device: torch.device
    dtype: str
    launch: Launch
    l2: L2
    rounds: int
    steps: tuple[Pass, ...]


class _Restored:
    """A batch before which the operands are put back; a `Batch`."""

    def __init__(self, batch: Batch, restore: Callable[[], None]) -> None:
        self.calls = batch.calls
        self._batch, self._restore = batch, restore

    def time(self) -> float:
        self._restore()
        return self._batch.time()


def cells_at(
    layer: Layer, shape: Rows, setup: LayerSetup, backends: tuple[str, ...]
) -> list[LayerCell]:
    """Return the cells of *layer* at *shape*; everything that was made for them is gone then."""
    dtype = parse_dtype(setup.dtype, "--dtype")
    try:
        operands = LayerOperands(layer, shape, dtype, setup.device, warm=setup.l2 is L2.WARM)
    except RuntimeError as error:  # out of memory, which is a class of its own on a GPU only
        reason = f"no operands: {reason_of(error)}"
        none = _PassTimes({}, {}, dict.fromkeys(backends, reason))
        return [
            cell
            for step in setup.steps
            for cell in _cells_of(_PassCase(layer, shape, step), setup, none, backends)
        ]
    found: list[LayerCell] = []
    try:
        for step in setup.steps:
            place = _PassCase(layer, shape, step)
            timing = _timed(place, operands, setup, backends)
            found += _cells_of(place, setup, timing, backends)
    finally:
        torch.compiler.reset()  # the next shape is compiled afresh, without a limit on how many
        del operands
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()
    return found


@dataclass(frozen=True, slots=True)
class _PassCase:
    """What a cell is of, apart from its backend."""

    layer: Layer
    shape: Rows
    step: Pass

    def moved(self, item: int) -> int:
        """Return the least bytes that are moved."""
        forward = self.layer.forward_bytes(self.shape, item)
        if self.step is Pass.FORWARD:
            return forward
        return forward + self.layer.backward_bytes(self.shape, item)


@dataclass(frozen=True, slots=True)
class _PassTimes:
    """What came of one pass, by backend."""

    times: Mapping[str, Samples]
    errors: Mapping[str, float]
    reasons: Mapping[str, str]


def _cells_of(
    place: _PassCase, setup: LayerSetup, timing: _PassTimes, backends: tuple[str, ...]
) -> list[LayerCell]:
    moved = place.moved(parse_dtype(setup.dtype, "--dtype").itemsize)
    return [
        LayerCell(
            layer=place.layer.name,
            shape=place.shape,
            step=place.step,
            backend=backend,
            moved=moved,
            samples=timing.times.get(backend),
            error=timing.errors.get(backend),
            reason=timing.reasons.get(backend, ""),
        )
        for backend in backends
    ]


def _timed(
    place: _PassCase, operands: LayerOperands, setup: LayerSetup, backends: tuple[str, ...]
) -> _PassTimes:
    """Return the times of one pass, taken in turn of every backend that computes it rightly."""
    errors: dict[str, float] = {}
    reasons: dict[str, str] = {}
    batches: dict[str, Batch] = {}
    for backend in backends:
        try:
            operator = operator_of(backend, place.layer)
            errors[backend] = _checked(place.step, operator, operands, TOLERANCE[setup.dtype])
            batches[backend] = _ready(place.step, operator, operands, setup)
        except Exception as error:  # noqa: BLE001  whatever a backend raises costs that backend
            reasons[backend] = reason_of(error)
    return _PassTimes(run_rounds(batches, setup.rounds), errors, reasons)


def _checked(step: Pass, operator: Operator, operands: LayerOperands, limit: float) -> float:
    if step is Pass.FORWARD:
        return operands.check_forward(operator, limit)
    return operands.check_both(operator, limit)


def _ready(step: Pass, operator: Operator, operands: LayerOperands, setup: LayerSetup) -> Batch:
    """Return the calls of *operator* ready to be timed, after one batch of them."""
    sets = operands.sets

    def call(number: int) -> object:
        one = sets[number % len(sets)]
        return one.forward(operator) if step is Pass.FORWARD else one.both(operator)

    try:
        if setup.launch is Launch.CUDAGRAPH:
            _refuse_waiting(call)
        batch = batch_of(call, setup.device, setup.launch, setup.l2, len(sets))
    except Exception as error:
        if setup.launch is not Launch.CUDAGRAPH:
            raise
        # Ending the capture fails too, and hides what made it fail.
        first = error.__context__ or error
        raise BuildError(
            f"cannot be captured into a CUDA graph, see --launch eager: {reason_of(first)}"
        ) from error
    restored = _Restored(batch, operands.restore)
    restored.time()
    return restored


def _refuse_waiting(call: Callable[[int], object]) -> None:
    """Make *call* once, so that it fails where it waits for the device.

    No capture survives that, and one that broke off leaves torch's random numbers unusable.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(0)
    finally:
        torch.cuda.set_sync_debug_mode(before)
