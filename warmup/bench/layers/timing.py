"""`cells_at`: every backend on one layer at one shape, compiled, checked and timed in turn.

A backend that fails is dropped for that pass, and its cell has the reason.
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
    """The setup shared by all layers: device, dtype, launch, L2, rounds and passes."""

    device: torch.device
    dtype: str
    launch: Launch
    l2: L2
    rounds: int
    steps: tuple[Pass, ...]


class _Restored:
    """A `Batch` that restores its operands before it is timed."""

    def __init__(self, batch: Batch, restore: Callable[[], None]) -> None:
        self.calls = batch.calls
        self._batch, self._restore = batch, restore

    def time(self) -> float:
        self._restore()
        return self._batch.time()


def cells_at(
    layer: Layer, shape: Rows, setup: LayerSetup, backends: tuple[str, ...]
) -> list[LayerCell]:
    """Return the cells of *layer* at *shape*; operands and compiled code are freed afterwards."""
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
    cells: list[LayerCell] = []
    try:
        for step in setup.steps:
            case = _PassCase(layer, shape, step)
            timing = _timed(case, operands, setup, backends)
            cells += _cells_of(case, setup, timing, backends)
    finally:
        torch.compiler.reset()  # so the next shape never meets dynamo's recompile limit
        del operands
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()
    return cells


@dataclass(frozen=True, slots=True)
class _PassCase:
    """One pass of one layer at one shape: a cell without its backend."""

    layer: Layer
    shape: Rows
    step: Pass

    def moved(self, item: int) -> int:
        """Return the least bytes that the pass moves, with *item* bytes per element."""
        forward = self.layer.forward_bytes(self.shape, item)
        if self.step is Pass.FORWARD:
            return forward
        return forward + self.layer.backward_bytes(self.shape, item)


@dataclass(frozen=True, slots=True)
class _PassTimes:
    """The results of one pass by backend: times, errors, and reasons of failures."""

    times: Mapping[str, Samples]
    errors: Mapping[str, float]
    reasons: Mapping[str, str]


def _cells_of(
    case: _PassCase, setup: LayerSetup, timing: _PassTimes, backends: tuple[str, ...]
) -> list[LayerCell]:
    moved = case.moved(parse_dtype(setup.dtype, "--dtype").itemsize)
    return [
        LayerCell(
            layer=case.layer.name,
            shape=case.shape,
            step=case.step,
            backend=backend,
            moved=moved,
            samples=timing.times.get(backend),
            error=timing.errors.get(backend),
            reason=timing.reasons.get(backend, ""),
        )
        for backend in backends
    ]


def _timed(
    case: _PassCase, operands: LayerOperands, setup: LayerSetup, backends: tuple[str, ...]
) -> _PassTimes:
    """Return the times of one pass on every backend whose output is right, backends alternating."""
    errors: dict[str, float] = {}
    reasons: dict[str, str] = {}
    batches: dict[str, Batch] = {}
    for backend in backends:
        try:
            operator = operator_of(backend, case.layer)
            errors[backend] = _checked(case.step, operator, operands, TOLERANCE[setup.dtype])
            batches[backend] = _ready(case.step, operator, operands, setup)
        except Exception as error:  # noqa: BLE001  any failure drops this backend only
            reasons[backend] = reason_of(error)
    return _PassTimes(run_rounds(batches, setup.rounds), errors, reasons)


def _checked(step: Pass, operator: Operator, operands: LayerOperands, limit: float) -> float:
    if step is Pass.FORWARD:
        return operands.check_forward(operator, limit)
    return operands.check_both(operator, limit)


def _ready(step: Pass, operator: Operator, operands: LayerOperands, setup: LayerSetup) -> Batch:
    """Return a batch of calls of *operator* that has run once."""
    sets = operands.sets

    def call(number: int) -> object:
        chosen = sets[number % len(sets)]
        return chosen.forward(operator) if step is Pass.FORWARD else chosen.both(operator)

    try:
        if setup.launch is Launch.CUDAGRAPH:
            _refuse_waiting(call)
        batch = batch_of(call, setup.device, setup.launch, setup.l2, len(sets))
    except Exception as error:
        if setup.launch is not Launch.CUDAGRAPH:
            raise
        # Ending the broken capture raises too; the first error is that error's context.
        first = error.__context__ or error
        raise BuildError(
            f"cannot be captured into a CUDA graph, see --launch eager: {reason_of(first)}"
        ) from error
    restored = _Restored(batch, operands.restore)
    restored.time()
    return restored


def _refuse_waiting(call: Callable[[int], object]) -> None:
    """Make *call* once, outside a capture; a call that synchronizes with the device raises.

    A synchronization would break the capture, and a broken capture leaves torch's random number
    generator unusable.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(0)
    finally:
        torch.cuda.set_sync_debug_mode(before)
