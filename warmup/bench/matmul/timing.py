"""`time_columns`: every column at one matmul shape, compiled, checked and timed in turn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from warmup.bench.matmul.columns import Column, MatmulOperands, make_column
from warmup.bench.matmul.product import trial_of
from warmup.bench.matmul.report import (
    TABLE_COLUMN,
    HostSplit,
    ShapeResult,
    Timed,
    columns_for,
)
from warmup.bench.matmul.shapes import Shape
from warmup.bench.reasons import reason_of
from warmup.core.errors import OutputMismatchError, SettingsError
from warmup.core.method import L2, Method
from warmup.core.samples import Samples
from warmup.core.trial import TimedCall
from warmup.inductor.build_caches import empty_caches
from warmup.measuring.clock import Batch, batch_of, wall_us
from warmup.measuring.operands import MAX_OPERAND_SETS, OperandSets, poison_of
from warmup.measuring.reference import judge_output, reference_of
from warmup.measuring.rounds import run_rounds
from warmup.models.loading import parse_dtype
from warmup.table import Table
from warmup.table.policy import TOLERANCE

_SPLIT_ROUNDS: Final = 5
_SPLIT_CALLS: Final = 50  # in a row; the launch queue of a stream holds 1024

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class MatmulSetup:
    """The setup shared by all shapes: device, dtype of the operands, method and rounds."""

    device: torch.device
    dtype: str
    method: Method
    rounds: int


def time_columns(
    shape: Shape, setup: MatmulSetup, table: Table | None, missing: str
) -> ShapeResult:
    """Return the times of every column at *shape*, or the reason why a column was dropped.

    Every column compiles from empty caches. The table's column serves *table*; *missing* is why its
    build stopped early, empty where it did not. Device times are taken first, columns alternating,
    then total times.

    Raises:
        SettingsError: the operands cannot be allocated.
    """
    pairs, reference = _operands(shape, setup)
    ready: dict[str, _ReadyColumn] = {}
    dropped: dict[str, str] = {}
    with torch.no_grad(), empty_caches():
        for name in columns_for(setup.device.type, setup.dtype):
            try:
                column = make_column(name, MatmulOperands(*pairs[0], table, missing))
                ready[name] = _prepare(column, pairs, reference, setup)
            except Exception as error:  # noqa: BLE001  any failure drops this column only
                dropped[name] = reason_of(error)
                if name == TABLE_COLUMN and missing not in dropped[name]:
                    dropped[name] += f"; its build stopped early: {missing}"
        times, totals = _time_in_turn(ready, dropped, setup.rounds)
        timed = {
            name: Timed(
                device=times[name],
                total=totals[name],
                error=entry.error,
                kernel=entry.column.kernel,
                host=_host_of(entry, setup.device),
            )
            for name, entry in ready.items()
        }
    served = ready[TABLE_COLUMN].column if TABLE_COLUMN in ready else None
    return ShapeResult(
        shape=shape,
        timed=timed,
        dropped=dropped,
        hits=None if served is None else served.hits,
        is_unstable=served is not None and served.is_unstable,
    )


@dataclass
class _Wall:
    """A `Batch` of calls that are launched singly and timed by the host's clock."""

    call: TimedCall
    device: torch.device
    calls: int

    def time(self) -> float:
        return wall_us(self.call, self.device, self.calls)[1]


@dataclass(frozen=True, slots=True)
class _ReadyColumn:
    """One column, checked and ready to be timed."""

    column: Column
    error: float
    batch: Batch
    wall: _Wall


class _FailedColumnError(Exception):
    """The column ``name`` raised an error while it was timed."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name, self.error = name, error


@dataclass(frozen=True, slots=True)
class _NamedBatch:
    """A `Batch` whose errors name its column."""

    name: str
    batch: Batch

    @property
    def calls(self) -> int:
        return self.batch.calls

    def time(self) -> float:
        try:
            return self.batch.time()
        except Exception as error:
            raise _FailedColumnError(self.name, error) from error


def _time_in_turn(
    ready: dict[str, _ReadyColumn], dropped: dict[str, str], rounds: int
) -> tuple[dict[str, Samples], dict[str, Samples]]:
    """Return the device times and the total times of *ready*, the columns alternating.

    A column that raises an error moves from *ready* to *dropped*, and the others are timed anew.
    """
    while True:
        batches: dict[str, Batch] = {n: _NamedBatch(n, entry.batch) for n, entry in ready.items()}
        walls: dict[str, Batch] = {n: _NamedBatch(n, entry.wall) for n, entry in ready.items()}
        try:
            return run_rounds(batches, rounds), run_rounds(walls, rounds)
        except _FailedColumnError as failed:
            dropped[failed.name] = f"while it was timed: {reason_of(failed.error)}"
            del ready[failed.name]


def _host_of(entry: _ReadyColumn, device: torch.device) -> HostSplit:
    """Return the host's time of a call of *entry*, or the error that ended its measurement."""
    try:
        return _split_host(entry, device)
    except Exception as error:  # noqa: BLE001  the column keeps its device time and its total time
        return HostSplit(total=None, reason=reason_of(error))


def _split_host(entry: _ReadyColumn, device: torch.device) -> HostSplit:
    """Return the host's time of a call of *entry*, medians of several rounds of calls.

    Each round times the total and the parts, so that a change of the load is in all of them.
    """
    call, calls, compiled = entry.wall.call, _SPLIT_CALLS, entry.column.compiled

    def enqueue() -> float:
        return wall_us(call, device, calls)[0]

    if compiled is None:
        return HostSplit(total=statistics.median(enqueue() for _ in range(_SPLIT_ROUNDS)))
    totals, guards, allocations, launches = [], [], [], []
    for _ in range(_SPLIT_ROUNDS):
        totals.append(enqueue())
        guards.append(compiled.guards_us(calls))
        with compiled.timing_parts() as parts:
            enqueue()
        allocations.append(parts.allocation_us / calls)
        launches.append(parts.launch_us / calls)
    known = [value for value in guards if value is not None]
    return HostSplit(
        total=statistics.median(totals),
        guards=statistics.median(known) if known else None,
        allocation=statistics.median(allocations),
        launch=statistics.median(launches),
    )


def _operands(shape: Shape, setup: MatmulSetup) -> tuple[list[Pair], torch.Tensor]:
    """Return operand sets of *shape*, one set for warm L2, and the first set's reference."""
    trial = trial_of(shape, parse_dtype(setup.dtype, "--dtype"), setup.device, setup.method)
    most = 1 if setup.method.l2 is L2.WARM else MAX_OPERAND_SETS
    try:
        sets = OperandSets(trial, setup.device, trial.seed, most)
        pairs = [(a, b) for a, b in map(sets.views, range(sets.count))]
        reference = reference_of(trial, pairs[0])
    except RuntimeError as error:  # out of memory, which is a class of its own on a GPU only
        raise SettingsError(
            f"--shapes {shape}: its operands cannot be made ({reason_of(error)})",
            "give smaller ones",
        ) from error
    assert reference is not None
    return pairs, reference


def _prepare(
    column: Column, pairs: Sequence[Pair], reference: torch.Tensor, setup: MatmulSetup
) -> _ReadyColumn:
    """Return *column* ready to be timed.

    Raises:
        OutputMismatchError: the output of the column is wrong.
        Exception: whatever the column raises.
    """
    multiply, count, method = column.multiply, len(pairs), setup.method
    # The allocator reuses this freed memory for the output, so unwritten elements keep the poison.
    dtype = pairs[0][0].dtype
    torch.full(reference.shape, poison_of(dtype), dtype=dtype, device=setup.device)
    output = multiply(*pairs[0])
    _, rejection, message = judge_output(output, reference, TOLERANCE[setup.dtype])
    if rejection is not None:
        raise OutputMismatchError(f"its output is {rejection}: {message}")
    distance = (output.to(reference.dtype) - reference).norm() / reference.norm()

    def call(number: int) -> torch.Tensor:
        return multiply(*pairs[number % count])

    batch = batch_of(call, setup.device, method.launch, method.l2, count)
    batch.time()
    return _ReadyColumn(column, distance.item(), batch, _Wall(call, setup.device, batch.calls))
