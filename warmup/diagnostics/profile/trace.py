"""`Trace`: what a trace says of a device's kernels, the calls that launched them, and the marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from warmup.core.errors import SettingsError
from warmup.core.planned_kernels import BUCKET_MARK, PLAN_NAME, RecordedPlan, plan_from_json
from warmup.diagnostics.profile.time_ranges import TimeRanges
from warmup.diagnostics.profile.trace_file import TraceFile

_DEVICE_WORK: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCH_CATEGORIES: Final = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver"})
_READ_CATEGORIES: Final = _DEVICE_WORK | _LAUNCH_CATEGORIES | {"user_annotation", "cpu_op"}
_STEP: Final = "ProfilerStep#"
_GRAPH: Final = "## Call CompiledFxGraph "
GENERATED_PREFIXES: Final = ("triton_", "cpp_", "graph_")
_RECORDED_SIGNATURE: Final = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_BACKEND: Final = "kernel_backend"  # an argument of launches of generated kernels
_KERNEL_ARGUMENTS: Final = ("kernel_kwargs", "num_warps", "num_stages", "kernel_flop")
_LAST_TIME: Final = 1e18  # us, thirty thousand years: no profiler writes it

Where = tuple[int | str | None, int | str | None]  # process and thread


@dataclass(frozen=True, slots=True, eq=False)
class HostOperator:
    """A call of an operator, or of a generated kernel, as the host made it; equal calls share one.

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

    ``launched`` is when the host's call that enqueued it ended, ``call`` the operator that did.
    ``bucket``, ``iteration`` and ``graph`` are the mark, its number, and the compiled graph around
    that call, ``graph_call`` the number of the graph's call. Each is None where the trace lacks it.
    """

    name: str
    begin: float
    us: float
    device: str
    stream: int
    category: str
    correlation: int | None = None
    call: HostCall | None = None
    launched: float | None = None
    bucket: str | None = None
    iteration: int | None = None
    graph: str | None = None
    graph_call: int | None = None

    @property
    def end(self) -> float:
        """When the device ended it."""
        return self.begin + self.us


@dataclass(frozen=True, slots=True)
class IterationMark:
    """An iteration: a range in which the model was called once; ``name`` is its bucket, if any."""

    name: str | None
    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The events of a trace by device time, and what else its file says.

    ``is_cpu``: the trace has no device but the CPU, and its events are the operators that the host
    ran. ``iterations`` are the marked ones. ``skipped`` counts events of the device that have no
    time. ``devices`` has the names of the devices.
    """

    events: tuple[DeviceEvent, ...]
    iterations: tuple[IterationMark, ...]
    is_cpu: bool
    devices: tuple[str, ...] = ()
    plan: RecordedPlan | None = None
    skipped: int = 0


@dataclass(slots=True)
class _Collected:
    """What is read in one pass."""

    events: list[DeviceEvent] = field(default_factory=list)
    externals: list[Any] = field(default_factory=list)  # of each event
    runtime: dict[int, tuple[Where, float, float]] = field(default_factory=dict)
    calls: dict[Where, list[HostCall]] = field(default_factory=dict)
    by_external: dict[Any, HostCall] = field(default_factory=dict)
    marks: list[tuple[Where, float, float, str]] = field(default_factory=list)
    graphs: dict[Where, list[tuple[float, float, str]]] = field(default_factory=dict)
    operators: dict[Any, HostOperator] = field(default_factory=dict)
    skipped: int = 0


def read_trace(file: TraceFile) -> Trace:
    """Return the trace in *file*.

    Raises:
        SettingsError: it cannot be read, or has neither kernels nor operators.
    """
    found = _Collected()
    for event in file.events():
        if event.get("ph") == "X":
            _collect(event, found)
    for calls in found.calls.values():
        _nest(calls)
    is_cpu = not found.events
    if is_cpu:
        _take_operators(found)
    if not found.events:
        raise SettingsError(
            f"{file.path}: no kernel and no operator in it", "profile the calls of a model"
        )
    iterations = _iterations(found)
    _place(found, iterations)
    properties = file.members.get("deviceProperties")
    listed = properties if isinstance(properties, list) else []
    names = [str(each.get("name")) for each in listed if isinstance(each, dict)]
    plan = file.members.get(PLAN_NAME)
    return Trace(
        events=tuple(sorted(found.events, key=lambda each: (each.device, each.begin))),
        iterations=tuple(mark for _, mark in iterations),
        is_cpu=is_cpu,
        devices=tuple(dict.fromkeys(names)),
        plan=None if plan is None else plan_from_json(plan, str(file.path)),
        skipped=found.skipped,
    )


def _collect(event: dict[str, Any], found: _Collected) -> None:
    category = event.get("cat")
    if not isinstance(category, str) or category not in _READ_CATEGORIES:
        return
    begin, us, name = _time(event.get("ts")), _time(event.get("dur")), str(event.get("name"))
    if begin is None or us is None:
        found.skipped += category in _DEVICE_WORK
        return
    arguments = event.get("args")
    given: dict[str, Any] = arguments if isinstance(arguments, dict) else {}
    where: Where = (_identity(event.get("pid")), _identity(event.get("tid")))
    if category in _DEVICE_WORK:
        device = given.get("device", event.get("pid"))
        stream = given.get("stream")
        found.events.append(
            DeviceEvent(
                *(name, begin, us, str(device), _integer(stream) or 0, category),
                correlation=_integer(given.get("correlation")),
            )
        )
        found.externals.append(_identity(given.get("External id")))
    elif category in _LAUNCH_CATEGORIES:
        correlation = _integer(given.get("correlation"))
        if correlation is not None:
            found.runtime[correlation] = (where, begin, begin + us)
    else:
        _collect_range(name, where, (begin, begin + us), given, found)


def _collect_range(
    name: str, where: Where, times: tuple[float, float], given: dict[str, Any], found: _Collected
) -> None:
    begin, end = times
    if name.startswith((BUCKET_MARK, _STEP)):
        found.marks.append((where, begin, end, name))
    elif name.startswith(_GRAPH):
        key = name.removeprefix(_GRAPH).removesuffix(" ##")
        found.graphs.setdefault(where, []).append((begin, end, key))
    # Other ranges, of a user or of torch's own runtime, compute nothing themselves.
    if "::" not in name and not name.startswith(GENERATED_PREFIXES) and _BACKEND not in given:
        return
    call = HostCall(begin, end, _operator(name, given, found.operators))
    found.calls.setdefault(where, []).append(call)
    external = _identity(given.get("External id"))
    if external is not None:
        found.by_external[external] = call


def _operator(name: str, given: dict[str, Any], known: dict[Any, HostOperator]) -> HostOperator:
    """Return the operator with these arguments; equal calls share one."""
    names = [each for each in (*_RECORDED_SIGNATURE, *_KERNEL_ARGUMENTS) if each in given]
    values = [given[each] for each in names]
    key = (name, repr(values))
    operator = known.get(key)
    if operator is None:
        operator = known[key] = HostOperator(name, dict(zip(names, values, strict=True)))
    return operator


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
    for (_, thread), calls in found.calls.items():
        for call in calls:
            if call.top is None:
                found.events.append(
                    DeviceEvent(
                        *(call.operator.name, call.begin, call.end - call.begin, "cpu"),
                        *(_integer(thread) or 0, "cpu_op"),
                        call=call,
                        launched=call.begin,
                    )
                )
                found.externals.append(None)


def _iterations(found: _Collected) -> list[tuple[Where, IterationMark]]:
    """Return the marked iterations: those of buckets, else the profiler's steps."""
    buckets = [mark for mark in found.marks if mark[3].startswith(BUCKET_MARK)]
    marks = sorted(buckets or found.marks, key=lambda mark: mark[1])
    return [
        (where, IterationMark(name.removeprefix(BUCKET_MARK) if buckets else None, begin, end))
        for where, begin, end, name in marks
    ]


def _place(found: _Collected, iterations: Sequence[tuple[Where, IterationMark]]) -> None:
    """Say of each event which call launched it, and in which iteration and graph."""
    ranges = {where: TimeRanges(listed) for where, listed in found.graphs.items()}
    by_time = TimeRanges([(m.begin, m.end, str(n)) for n, (_, m) in enumerate(iterations)])
    for event, external in zip(found.events, found.externals, strict=True):
        where: Where | None = None
        asked: float | None = event.call.begin if event.call is not None else None
        if event.call is not None:
            where = next((at for at in found.graphs if at[1] == event.stream), None)
        launch = found.runtime.get(event.correlation) if event.correlation is not None else None
        if launch is not None:
            where, asked, event.launched = launch
        if external is not None and event.call is None:
            call = found.by_external.get(external)
            event.call = call
            asked = asked if asked is not None or call is None else call.begin
        at = asked if asked is not None else event.begin
        number = by_time.index_at(at)
        if number is not None:
            event.iteration = number
            event.bucket = iterations[number][1].name
        if where in ranges and (place := ranges[where].index_at(at)) is not None:
            event.graph = ranges[where].name(place)
            event.graph_call = hash((where, place))


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
