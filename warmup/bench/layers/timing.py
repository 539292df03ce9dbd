"""`cells_at`: every backend on one layer at one shape, compiled, checked and timed in turn.

A backend that fails is dropped for that pass, and its cell has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from warmup.bench.layers.backends import TABLE, CustomOptions, operator_of
from warmup.bench.layers.layer import LayerShape, OpenLayer, Operator
from warmup.bench.layers.operands import LayerOperands, LayerWork
from warmup.bench.layers.report import LayerCell, Pass
from warmup.bench.layers.table_column import LayerTable
from warmup.bench.reasons import reason_of
from warmup.core.errors import BuildError, OutputMismatchError
from warmup.core.method import L2, Launch
from warmup.core.samples import Samples
from warmup.inductor.build_caches import empty_caches
from warmup.measuring.clock import Batch, batch_of
from warmup.measuring.rounds import run_rounds
from warmup.models.loading import parse_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSetup:
    """The setup shared by all layers; *tolerance* is the largest relative L2 error."""

    device: torch.device
    dtype: str
    launch: Launch
    l2: L2
    rounds: int
    steps: tuple[Pass, ...]
    tolerance: float
    customs: CustomOptions
    table: LayerTable


class _Restored:
    """A `Batch` that restores its operands before it is timed.

    A recompile while it is timed is an error: its time would be that of the compiler.
    """

    def __init__(self, batch: Batch, restore: Callable[[], None]) -> None:
        self.calls = batch.calls
        self._batch, self._restore = batch, restore

    def time(self) -> float:
        self._restore()
        with torch.compiler.set_stance("fail_on_recompile"):
            return self._batch.time()


def cells_at(
    layer: OpenLayer, shape: LayerShape, setup: LayerSetup, backends: tuple[str, ...]
) -> list[LayerCell]:
    """Return the cells of *layer* at *shape*; operands and compiled code are freed afterwards."""
    dtype = parse_dtype(setup.dtype, "--dtype")
    try:
        operands = LayerOperands(
            layer,
            shape,
            dtype,
            setup.device,
            warm=setup.l2 is L2.WARM,
            has_backward=Pass.BOTH in setup.steps,
        )
    except Exception as error:  # noqa: BLE001  out of memory, or an error of the user's layer
        none = _PassTimes({}, {}, dict.fromkeys(backends, f"no operands: {reason_of(error)}"), ())
        return [
            cell
            for step in setup.steps
            for cell in _cells_of(_PassCase(layer, shape, step), None, none, backends)
        ]
    cells: list[LayerCell] = []
    with empty_caches():  # which also drop what is compiled, so that no shape meets another's
        for step in setup.steps:
            case = _PassCase(layer, shape, step)
            timing = _timed(case, operands, setup, backends)
            cells += _cells_of(case, operands, timing, backends)
    del operands
    if setup.device.type == "cuda":
        torch.cuda.empty_cache()
    return cells


@dataclass(frozen=True, slots=True)
class _PassCase:
    """One pass of one layer at one shape: a cell without its backend."""

    layer: OpenLayer
    shape: LayerShape
    step: Pass

    def work(self, operands: LayerOperands) -> LayerWork:
        """Return the work of the pass."""
        if self.step is Pass.FORWARD:
            return operands.forward
        return operands.forward + operands.backward


@dataclass(frozen=True, slots=True)
class _PassTimes:
    """The results of one pass by backend: times, errors, reasons of failures, and who is wrong."""

    times: Mapping[str, Samples]
    errors: Mapping[str, float]
    reasons: Mapping[str, str]
    wrong: Collection[str]


def _cells_of(
    case: _PassCase,
    operands: LayerOperands | None,
    timing: _PassTimes,
    backends: tuple[str, ...],
) -> list[LayerCell]:
    work = None if operands is None else case.work(operands)
    return [
        LayerCell(
            layer=case.layer.name,
            shape=case.shape,
            step=case.step,
            backend=backend,
            moved=None if work is None else work.moved,
            flops=None if work is None else work.flops,
            samples=timing.times.get(backend),
            error=timing.errors.get(backend),
            reason=timing.reasons.get(backend, ""),
            is_wrong=backend in timing.wrong,
        )
        for backend in backends
        if backend in timing.times or backend in timing.reasons
    ]


def _timed(
    case: _PassCase, operands: LayerOperands, setup: LayerSetup, backends: tuple[str, ...]
) -> _PassTimes:
    """Return the times of one pass on every backend whose output is right, backends alternating.

    A backend that the layer does not have, or that has no such pass, is left out.
    """
    errors: dict[str, float] = {}
    reasons: dict[str, str] = {}
    wrong: list[str] = []
    batches: dict[str, Batch] = {}
    for backend in backends:
        try:
            operator = _operator(backend, case, operands, setup)
            if operator is None:
                continue
            errors[backend] = _checked(case.step, operator, operands, setup.tolerance)
            batches[backend] = _ready(case.step, operator, operands, setup)
        except Exception as error:  # noqa: BLE001  any failure drops this backend only
            reasons[backend] = reason_of(error)
            if isinstance(error, OutputMismatchError):
                wrong.append(backend)
    times: Mapping[str, Samples] | None = None
    while times is None:
        timed: list[str] = []
        try:
            times = run_rounds(batches, setup.rounds, timed.append)
        except Exception as error:  # noqa: BLE001  such as a recompile: this backend has no times
            del batches[timed[-1]]
            reasons[timed[-1]] = f"while it was timed: {reason_of(error)}"
    return _PassTimes(times, errors, reasons, wrong)


def _operator(
    backend: str, case: _PassCase, operands: LayerOperands, setup: LayerSetup
) -> Operator | None:
    """Return the operator of a backend; None where it has no such layer or pass."""
    if backend != TABLE:
        return operator_of(backend, case.layer, setup.customs)
    if case.step is not Pass.FORWARD:
        return None
    return setup.table.operator(case.layer, case.shape, operands)


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
