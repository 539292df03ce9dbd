"""`attribute`: which problem and which row are behind each kernel in a trace, and its work.

In the order of certainty: by the plan that was recorded with the trace, by the shapes that the
profiler recorded, by the kernel's name. What stays unknown is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmup.core.planned_kernels import GraphPlan, PlannedBy, PlannedKernel, RecordedPlan
from warmup.core.roofline import Work
from warmup.core.rows import Row, Scope
from warmup.diagnostics.profile.alignment import Aligned, align
from warmup.diagnostics.profile.operator_work import (
    TEMPLATE_PREFIX,
    has_formula,
    work_of_operator,
)
from warmup.diagnostics.profile.row_match import RowIndex, is_launch_key
from warmup.diagnostics.profile.trace import GENERATED_PREFIXES, DeviceEvent, HostCall, Trace
from warmup.table import Table

_TRITON_PREFIX: Final = "triton_"


class Reason(StrEnum):
    """Why an event has no row."""

    MISS = "miss"  # its key has no row in the table
    NO_TABLE = "no table"  # it has a key, and no table was given
    LIBRARY = "library"  # a library's kernel that nobody chooses among, such as attention
    UNCOVERED = "uncovered"  # generated code without a decision that rows are kept for
    COPY = "copy"  # a copy or a fill of the device's memory
    UNTRACED = "unknown"  # neither plan nor shapes nor name say what it is


class Known(StrEnum):
    """How the decision behind an event is known."""

    PLAN = "plan"
    SHAPES = "shapes"
    NAME = "name"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """An event with its decision.

    ``keys`` has several keys where it is not certain which of them it is: their order is unknown.
    ``row`` is the row of the first; None with a ``reason``. ``work`` is that of one call, which
    only its longest event has. ``call`` is equal for the events of one call.
    """

    event: DeviceEvent
    known: Known
    keys: tuple[str, ...] = ()
    row: Row | None = None
    reason: Reason | None = None
    work: Work | None = None
    call: object = None
    label: str = ""


def attribute(trace: Trace, table: Table | None) -> tuple[Attributed, ...]:
    """Return every event of *trace* with its decision, in the trace's order."""
    index = RowIndex({} if table is None else table.rows)
    planned = _planned(trace)
    found = [_attributed(event, planned.get(id(event)), table, index) for event in trace.events]
    return tuple(_with_work_once(found))


@dataclass(frozen=True, slots=True)
class _PlannedPlace:
    """The planned kernels that an event may be, and what is equal for the events of its call."""

    kernels: tuple[PlannedKernel, ...]
    call: object


def _planned(trace: Trace) -> Mapping[int, _PlannedPlace]:
    """Return the planned kernels of each event that the plan has, by the event's identity."""
    if trace.plan is None:
        return {}
    calls: dict[object, list[DeviceEvent]] = defaultdict(list)
    for event in trace.events:
        if event.bucket is not None and event.category not in ("gpu_memcpy", "gpu_memset"):
            calls[event.device, event.bucket, event.iteration, event.graph_call].append(event)
    found: dict[int, _PlannedPlace] = {}
    for call, events in calls.items():
        plan = _plan_of(events[0], trace.plan)
        if plan is None:
            continue
        events.sort(key=lambda event: event.begin)
        for event, aligned in zip(events, align(events, plan.kernels), strict=True):
            if aligned is not None:
                kernels = tuple(plan.kernels[place] for place in aligned.places)
                found[id(event)] = _PlannedPlace(kernels, _call_of(call, aligned, event))
    return found


def _plan_of(event: DeviceEvent, recorded: RecordedPlan) -> GraphPlan | None:
    """Return the plan of the graph that launched *event*: by its key, else the bucket's only one.

    Where a trace does not say the graph, the plans of the bucket's graphs follow each other.
    """
    plans = recorded.plans.get(event.bucket or "", ())
    named = [plan for plan in plans if plan.graph == event.graph]
    if named:
        return named[0]
    if event.graph is not None and len(plans) > 1:
        return None
    return GraphPlan("", tuple(each for plan in plans for each in plan.kernels)) if plans else None


def _call_of(call: object, aligned: Aligned, event: DeviceEvent) -> object:
    if len(aligned.places) == 1:
        return (call, aligned.call)
    return (call, id(event))


def _attributed(
    event: DeviceEvent, place: _PlannedPlace | None, table: Table | None, index: RowIndex
) -> Attributed:
    if event.category in ("gpu_memcpy", "gpu_memset"):
        return Attributed(
            event=event, known=Known.NAME, reason=Reason.COPY, call=id(event), label=event.name
        )
    if place is not None:
        return _from_plan(event, place, table)
    operator = None if event.call is None else _telling(event.call)
    work = None if operator is None else work_of_operator(operator.operator)
    call: object = id(event.call.top or event.call) if event.call is not None else id(event)
    keys = index.by_shapes(event, operator)
    known = Known.SHAPES
    if not keys:
        keys, known = index.by_name(event, operator), Known.NAME
    if keys:
        # The name alone, as in a CUDA graph, says neither the graph nor the config.
        row = index.rows[keys[0]] if len(keys) == 1 and event.call is not None else None
        return Attributed(
            event=event,
            known=known,
            keys=keys,
            row=row,
            reason=None if row is not None else Reason.UNTRACED,
            work=work,
            call=call,
            label=event.name,
        )
    reason, known = _reason_by_name(event, table)
    if operator is not None and reason is Reason.UNTRACED:
        reason, known = Reason.LIBRARY, Known.NAME
        if has_formula(operator.operator) and index.covers(operator.operator):
            reason = Reason.NO_TABLE if table is None else Reason.MISS
    return Attributed(
        event=event, known=known, reason=reason, work=work, call=call, label=event.name
    )


def _telling(call: HostCall) -> HostCall:
    """Return the operator around *call* whose work is known, the outermost; else *call*."""
    top = call.top
    return top if top is not None and has_formula(top.operator) else call


def _reason_by_name(event: DeviceEvent, table: Table | None) -> tuple[Reason, Known]:
    """Return why a kernel without a key has no row: what its name says of its decision."""
    if not event.name.startswith(GENERATED_PREFIXES):
        return Reason.UNTRACED, Known.NOTHING
    if not event.name.startswith(_TRITON_PREFIX):
        return Reason.UNCOVERED, Known.NAME
    if table is None:
        return Reason.NO_TABLE, Known.NAME
    is_decided = table.policy.launch_search or event.name.startswith(TEMPLATE_PREFIX)
    return (Reason.MISS if is_decided else Reason.UNCOVERED), Known.NAME


def _from_plan(event: DeviceEvent, place: _PlannedPlace, table: Table | None) -> Attributed:
    keys = tuple(dict.fromkeys(key for kernel in place.kernels for key in kernel.keys))
    if len(place.kernels) > 1 and len({kernel.keys for kernel in place.kernels}) > 1:
        return Attributed(
            event=event,
            known=Known.PLAN,
            keys=keys,
            reason=Reason.UNTRACED,
            call=place.call,
            label=event.name,
        )
    (kernel, *_) = place.kernels
    row = None
    if table is not None:
        served = [table.rows[key] for key in keys if key in table.rows]
        row = served[0] if served else None
        keys = tuple(key for key in keys if key in table.rows)[:1] or keys[:1]
    keys = keys[:1]
    work = _planned_work(kernel)
    if work is None or work.flops is None:
        work = _recorded_work(event, work)
    return Attributed(
        event=event,
        known=Known.PLAN,
        keys=keys,
        row=row,
        reason=None if row is not None else _reason_of(kernel, keys, table),
        work=work,
        call=place.call,
        label=event.name,
    )


def _planned_work(kernel: PlannedKernel) -> Work | None:
    if kernel.moved is None and kernel.flops is None:
        return None
    return Work(kernel.dtype, kernel.flops, kernel.moved or 0)


def _recorded_work(event: DeviceEvent, planned: Work | None) -> Work | None:
    """Return *planned* with the operations of the operator that launched *event*, if known."""
    if event.call is None:
        return planned
    found = work_of_operator(_telling(event.call).operator)
    if planned is None or found is None or found.flops is None:
        return planned or found
    return Work(found.dtype, found.flops, planned.moved)


def _reason_of(kernel: PlannedKernel, keys: Sequence[str], table: Table | None) -> Reason:
    if not keys:
        is_library = kernel.by is PlannedBy.LIBRARY
        return Reason.LIBRARY if is_library else Reason.UNCOVERED
    if table is None:
        return Reason.NO_TABLE
    if is_launch_key(keys[0]) and not table.policy.launch_search:
        return Reason.UNCOVERED  # nothing was to be decided, or rows of this kind are not kept
    return Reason.MISS


def _with_work_once(found: Sequence[Attributed]) -> Iterator[Attributed]:
    """Yield *found*, with the work of each call at its longest event only."""
    longest: dict[object, Attributed] = {}
    for each in found:
        if each.work is not None:
            other = longest.get(each.call)
            if other is None or each.event.us > other.event.us:
                longest[each.call] = each
    for each in found:
        if each.work is not None and longest[each.call] is not each:
            yield _without_work(each)
        else:
            yield each


def _without_work(each: Attributed) -> Attributed:
    return Attributed(
        event=each.event,
        known=each.known,
        keys=each.keys,
        row=each.row,
        reason=each.reason,
        work=None,
        call=each.call,
        label=each.label,
    )


def row_us(row: Row) -> tuple[float, bool]:
    """Return the time that *row* has for the kernels of its decision alone, and if it is whole.

    That is the GEMM without its epilogue where the winner leaves the epilogue to other kernels, and
    the whole region where the winner's only kernel has it. Where a fused winner's region has other
    kernels too, only the GEMM's own time is known, which is not whole: its kernel does more.
    """
    found = row.evidence
    if found.scope is Scope.BARE or found.bare_us is None:
        return found.time_us, True
    if not row.winner.fused:
        return found.bare_us, True
    if found.kernels == 1:
        return found.time_us, True
    return found.bare_us, False
