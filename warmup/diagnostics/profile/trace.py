"""`read_trace`: a device's kernels, the host's calls that launched them, and marked iterations."""

from __future__ import annotations

import bisect
import gzip
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from warmup.core.error_text import shown
from warmup.core.errors import SettingsError
from warmup.core.files import open_regular
from warmup.core.planned_kernels import BUCKET_MARK, RecordedPlan, plan_from_json

LARGEST_TRACE: Final = 1 << 30  # bytes of a trace once unpacked; all of them are in memory
_GZIP: Final = b"\x1f\x8b"
COPIES: Final = frozenset({"gpu_memcpy", "gpu_memset"})
_DEVICE_WORK: Final = COPIES | {"kernel"}
_LAUNCHES: Final = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver"})
_RANGES: Final = frozenset({"user_annotation", "cpu_op"})
_STEP: Final = "ProfilerStep#"
_GRAPH: Final = "## Call CompiledFxGraph "
GENERATED_PREFIXES: Final = ("triton_", "cpp_", "graph_")
_KEPT_ARGUMENTS: Final[tuple[str, ...]] = (
    *("Input Dims", "Input type", "Concrete Inputs"),
    *("kernel_kwargs", "num_warps", "num_stages", "kernel_flop"),
)
_BACKEND: Final = "kernel_backend"  # an argument of launches of generated kernels
_LAST_TIME: Final = 1e18  # us, thirty thousand years: no profiler writes such a time
_NESTED_RANGES: Final = 8  # of one thread, looked through for the innermost around a time

Where = tuple[int | str | None, int | str | None]  # process and thread


@dataclass(frozen=True, slots=True, eq=False)
class HostOperator:
    """An operator, or a generated kernel, as the host called it; equal calls share one object.

    ``arguments`` has what the profiler recorded of its arguments, by the profiler's names.
    """

    name: str
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class HostCall:
    """A range of one thread; times are in microseconds. ``top`` is the outermost operator."""

    begin: float
    end: float
    operator: HostOperator
    top: HostCall | None = None


@dataclass(slots=True)
class DeviceEvent:
    """A kernel, a copy or a fill of a device; ``begin`` and ``us`` are in microseconds.

    ``launched`` is when the host's call that enqueued the event ended, ``call`` the operator that
    made that call. ``bucket``, ``iteration`` and ``graph`` are the mark, its number, and the
    compiled graph around that call, ``graph_call`` the number of the graph's call. Each is None
    where the trace lacks it.
    """

    name: str
    begin: float
    us: float
    device: str
    stream: int
    category: str
    correlation: int | None = None
    external: int | str | None = None
    call: HostCall | None = None
    launched: float | None = None
    bucket: str | None = None
    iteration: int | None = None
    graph: str | None = None
    graph_call: tuple[Where, int] | None = None


@dataclass(frozen=True, slots=True)
class IterationMark:
    """A range in which the model was called once; ``name`` is its bucket, if any."""

    name: str | None
    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The events of a trace by device and time, and what else its file says.

    ``is_cpu``: the trace has no device but the CPU, and its events are the outermost operators of
    the host. ``skipped`` counts events of the device that have no time.
    """

    events: tuple[DeviceEvent, ...]
    iterations: tuple[IterationMark, ...]
    is_cpu: bool
    devices: tuple[str, ...] = ()
    plan: RecordedPlan | None = None
    skipped: int = 0


class _Event(msgspec.Struct):
    """An entry of the trace's list. Values of a wrong type are found where they are used."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Any = None
    dur: Any = None
    pid: Any = None
    tid: Any = None
    args: dict[str, Any] = msgspec.field(default_factory=dict)


class _Document(msgspec.Struct):
    """The members of a trace's file that are read; `warmup` adds its plan to those of torch."""

    events: list[_Event] = msgspec.field(name="traceEvents")
    devices: Any = msgspec.field(name="deviceProperties", default=None)
    plan: Any = msgspec.field(name="warmup", default=None)


@dataclass(slots=True)
class _Collected:
    """What the events of a file say, in one pass."""

    events: list[DeviceEvent] = field(default_factory=list)
    runtime: dict[int, tuple[Where, float, float]] = field(default_factory=dict)
    calls: dict[Where, list[HostCall]] = field(default_factory=dict)
    by_external: dict[int | str, HostCall] = field(default_factory=dict)
    marks: list[IterationMark] = field(default_factory=list)
    graphs: dict[Where, list[tuple[float, float, str]]] = field(default_factory=dict)
    operators: dict[tuple[str, str], HostOperator] = field(default_factory=dict)
    skipped: int = 0


def read_trace(path: Path) -> Trace:
    """Return the trace in *path*, JSON in Chrome's format, gzipped or not.

    Raises:
        SettingsError: the file cannot be read, is larger than `LARGEST_TRACE` once unpacked, is
            nested deeper than the interpreter's limit, or has neither kernels nor operators.
    """
    document = _document_in(path)
    found = _Collected()
    for event in document.events:
        if event.ph == "X":
            _collect(event, found)
    for calls in found.calls.values():
        _nest(calls)
    is_cpu = not found.events
    if is_cpu:
        _take_operators(found)
    if not found.events:
        raise SettingsError(
            f"{shown(path)}: no kernel and no operator in it", "profile the calls of a model"
        )
    iterations = _iterations(found.marks)
    _place(found, iterations)
    listed = document.devices if isinstance(document.devices, list) else []
    names = [str(each.get("name")) for each in listed if isinstance(each, dict)]
    plan = document.plan
    return Trace(
        events=tuple(sorted(found.events, key=lambda each: (each.device, each.begin))),
        iterations=tuple(iterations),
        is_cpu=is_cpu,
        devices=tuple(dict.fromkeys(names)),
        plan=None if plan is None else plan_from_json(plan, str(path)),
        skipped=found.skipped,
    )


def _document_in(path: Path) -> _Document:
    try:
        with open_regular(path) as raw:
            is_packed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            content = (gzip.GzipFile(fileobj=raw) if is_packed else raw).read(LARGEST_TRACE + 1)
        if len(content) > LARGEST_TRACE:
            raise ValueError(f"it has more than {LARGEST_TRACE:,} bytes once unpacked")  # noqa: TRY301  one sentence for each reason
        if content.lstrip()[:1] == b"[":  # Chrome's other form: the list alone
            return _Document(msgspec.json.decode(content, type=list[_Event]))
        return msgspec.json.decode(content, type=_Document)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SettingsError(
            f"{shown(path)}: cannot be read as a trace: {shown(reason)}",
            "name a file that torch.profiler wrote with export_chrome_trace",
        ) from error


def _collect(event: _Event, found: _Collected) -> None:
    category, given = event.cat, event.args
    if not isinstance(category, str) or category not in _DEVICE_WORK | _LAUNCHES | _RANGES:
        return
    begin, us = _time(event.ts), _time(event.dur)
    if begin is None or us is None:
        found.skipped += category in _DEVICE_WORK
        return
    where: Where = (_identity(event.pid), _identity(event.tid))
    correlation = _integer(given.get("correlation"))
    if category in _DEVICE_WORK:
        device, stream = str(given.get("device", event.pid)), _integer(given.get("stream")) or 0
        found.events.append(
            DeviceEvent(
                *(str(event.name), begin, us, device, stream, category, correlation),
                _identity(given.get("External id")),
            )
        )
    elif category in _RANGES:
        _collect_range(str(event.name), where, (begin, begin + us), given, found)
    elif correlation is not None:
        found.runtime[correlation] = (where, begin, begin + us)


def _collect_range(
    name: str, where: Where, times: tuple[float, float], given: dict[str, Any], found: _Collected
) -> None:
    if name.startswith((BUCKET_MARK, _STEP)):
        found.marks.append(IterationMark(name, *times))
    elif name.startswith(_GRAPH):
        key = name.removeprefix(_GRAPH).removesuffix(" ##")
        found.graphs.setdefault(where, []).append((*times, key))
    # Other ranges, of a user or of torch's own runtime, compute nothing themselves.
    elif "::" in name or name.startswith(GENERATED_PREFIXES) or _BACKEND in given:
        arguments = {each: given[each] for each in _KEPT_ARGUMENTS if each in given}
        operator = found.operators.setdefault(
            (name, repr(arguments)), HostOperator(name, arguments)
        )
        call = HostCall(*times, operator)
        found.calls.setdefault(where, []).append(call)
        external = _identity(given.get("External id"))
        if external is not None:
            found.by_external[external] = call


def _nest(calls: list[HostCall]) -> None:
    """Give each of one thread's *calls* the outermost call around it."""
    calls.sort(key=lambda call: (call.begin, -call.end))
    top: HostCall | None = None
    for call in calls:
        if top is not None and call.begin < top.end:
            call.top = top
        else:
            top = call


def _take_operators(found: _Collected) -> None:
    """Make the outermost operators the events, for a trace of the CPU alone."""
    found.events = [
        DeviceEvent(
            *(call.operator.name, call.begin, call.end - call.begin, "cpu"),
            *(_integer(thread) or 0, "cpu_op"),
            call=call,
            launched=call.begin,
        )
        for (_, thread), calls in found.calls.items()
        for call in calls
        if call.top is None
    ]


def _iterations(marks: Sequence[IterationMark]) -> list[IterationMark]:
    """Return the marked iterations by time: those of buckets, else the profiler's steps."""
    buckets = [mark for mark in marks if (mark.name or "").startswith(BUCKET_MARK)]
    return [
        IterationMark((mark.name or "").removeprefix(BUCKET_MARK) if buckets else None, *times)
        for mark in sorted(buckets or marks, key=lambda mark: mark.begin)
        for times in [(mark.begin, mark.end)]
    ]


def _place(found: _Collected, iterations: Sequence[IterationMark]) -> None:
    """Say of each event which call launched it, and in which iteration and graph."""
    graphs = {where: sorted(ranges) for where, ranges in found.graphs.items()}
    marks = [(mark.begin, mark.end, "") for mark in iterations]
    threads = {thread: (process, thread) for process, thread in reversed(found.graphs)}
    for event in found.events:
        where: Where | None = threads.get(event.stream) if event.call is not None else None
        if event.call is None and event.external is not None:
            event.call = found.by_external.get(event.external)
        at = event.begin if event.call is None else event.call.begin
        launch = found.runtime.get(event.correlation) if event.correlation is not None else None
        if launch is not None:
            where, at, event.launched = launch
        event.iteration = _index_at(marks, at)
        if event.iteration is not None:
            event.bucket = iterations[event.iteration].name
        if where in graphs and (place := _index_at(graphs[where], at)) is not None:
            event.graph, event.graph_call = graphs[where][place][2], (where, place)


def _index_at(ranges: Sequence[tuple[float, float, str]], time: float) -> int | None:
    """Return the index of the innermost of the sorted *ranges* around *time*; None without one."""
    last = bisect.bisect_right(ranges, time, key=lambda each: each[0]) - 1
    inner = range(last, max(last - _NESTED_RANGES, -1), -1)
    return next((index for index in inner if time < ranges[index][1]), None)


def _time(value: Any) -> float | None:
    """Return *value* of a trace, a time in microseconds; None where it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _LAST_TIME else None


def _identity(value: Any) -> int | str | None:
    """Return the number or name of a process, a thread or a call, None for another value."""
    return value if isinstance(value, (int, str)) else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
