"""`read_trace`: a device's kernels, the host's calls that launched them, and marked iterations.

`record_trace` serves buckets of a model under torch's profiler, and keeps the kernels' plan.
"""

from __future__ import annotations

import bisect
import contextlib
import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from warmup.core.buckets import parse_buckets, parse_inputs
from warmup.core.errors import SettingsError
from warmup.core.files import open_regular, replace_bytes, temporary_folder
from warmup.core.roofline import BUCKET_MARK, PLAN_NAME, GraphPlan, RecordedPlan, plan_from_json
from warmup.core.rows import COMPILE_MODES
from warmup.core.text import problem_in, shown
from warmup.serving.install import InstallRequest, install_as
from warmup.table.codec import digest_of
from warmup.table.schema import Table

if TYPE_CHECKING:
    import torch

    from warmup.models.loading import Inputs

LARGEST_TRACE: Final = 1 << 30  # bytes of a trace once unpacked; all of them are in memory
_GZIP: Final = b"\x1f\x8b"
COPIES: Final = frozenset({"gpu_memcpy", "gpu_memset"})
_DEVICE_WORK: Final = COPIES | {"kernel"}
_LAUNCHES: Final = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver"})
_READ: Final = _DEVICE_WORK | _LAUNCHES | {"user_annotation", "cpu_op"}
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

Identity = int | str | None  # of a process, a thread or a call
Thread = tuple[Identity, Identity]  # with its process before it
Shape = tuple[int, ...]


class Range(NamedTuple):
    """A range of a thread, in microseconds; ``name`` is that of a bucket or a graph, if any."""

    begin: float
    end: float
    name: str | None


@dataclass(frozen=True, slots=True, eq=False)
class HostOperator:
    """An operator, or a generated kernel, with its arguments by the profiler's names."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class HostCall:
    """A range of one thread; times are in microseconds. ``top`` is the outermost operator."""

    begin: float
    end: float
    operator: HostOperator
    top: HostCall | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceEvent:
    """A kernel, a copy or a fill of a device; ``begin`` and ``us`` are in microseconds.

    ``launched`` is when the host's call that enqueued the event ended, ``call`` the operator that
    made that call. ``iteration`` and ``graph`` are the marked call of the model and the call of a
    compiled graph around that call. Each is None where the trace lacks it.
    """

    name: str
    begin: float
    us: float
    device: str
    category: str
    call: HostCall | None
    launched: float | None
    iteration: Range | None
    graph: Range | None

    @property
    def bucket(self) -> str | None:
        return None if self.iteration is None else self.iteration.name


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of a trace by device and time, and what else its file says.

    ``iterations`` are the calls of the model: those marked with a bucket, else the profiler's
    steps. With ``is_cpu`` the events are the outermost operators of the host. ``skipped`` counts
    events of the device that have no time.
    """

    events: tuple[DeviceEvent, ...]
    iterations: tuple[Range, ...]
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
    events: list[_Event] = msgspec.field(name="traceEvents")
    devices: Any = msgspec.field(name="deviceProperties", default=None)
    plan: Any = msgspec.field(name="warmup", default=None)


def read_trace(path: Path) -> Trace:
    """Return the trace in *path*, JSON in Chrome's format, gzipped or not."""
    document, host, skipped = _document_in(path), _Host(), 0
    work: list[tuple[_Event, float, float]] = []
    for event in document.events:
        if event.ph != "X" or not isinstance(event.cat, str) or event.cat not in _READ:
            continue
        begin, us = _time(event.ts), _time(event.dur)
        if begin is None or us is None:
            skipped += event.cat in _DEVICE_WORK
        elif event.cat in _DEVICE_WORK:
            work.append((event, begin, us))
        else:
            host.add(event, begin, begin + us)
    host.sort()
    events = [host.enqueued(*each) for each in work] or host.operators()
    if not events:
        raise SettingsError(
            f"{shown(path)}: no kernel and no operator in it", "profile the calls of a model"
        )
    listed = document.devices if isinstance(document.devices, list) else []
    names = [str(each.get("name")) for each in listed if isinstance(each, dict)]
    ordered = tuple(sorted(events, key=lambda each: (each.device, each.begin)))
    plan = None if document.plan is None else plan_from_json(document.plan, str(path))
    devices = tuple(dict.fromkeys(names))
    return Trace(ordered, tuple(host.iterations), not work, devices, plan, skipped)


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
        raise SettingsError(
            f"{shown(path)}: cannot be read as a trace: {shown(problem_in(error))}",
            "name a file that torch.profiler wrote with export_chrome_trace",
        ) from error


class _Host:
    def __init__(self) -> None:
        self.iterations: list[Range] = []
        self._steps: list[Range] = []
        self._graphs: dict[Thread | None, list[Range]] = defaultdict(list)
        self._calls: dict[Thread, list[HostCall]] = defaultdict(list)
        self._by_external: dict[Identity, HostCall] = {}
        self._launches: dict[Identity, tuple[Thread, float, float]] = {}
        self._operators: dict[tuple[str, str], HostOperator] = {}

    def add(self, event: _Event, begin: float, end: float) -> None:
        name, given = str(event.name), event.args
        thread = _identity(event.pid), _identity(event.tid)
        if event.cat in _LAUNCHES:
            if (correlation := _identity(given.get("correlation"))) is not None:
                self._launches[correlation] = thread, begin, end
        elif name.startswith(BUCKET_MARK):
            self.iterations.append(Range(begin, end, name.removeprefix(BUCKET_MARK)))
        elif name.startswith(_STEP):
            self._steps.append(Range(begin, end, None))
        elif name.startswith(_GRAPH):
            graph = name.removeprefix(_GRAPH).removesuffix(" ##")
            self._graphs[thread].append(Range(begin, end, graph))
        # Other ranges, of a user or of torch's own runtime, compute nothing themselves.
        elif "::" in name or name.startswith(GENERATED_PREFIXES) or _BACKEND in given:
            kept = {each: given[each] for each in _KEPT_ARGUMENTS if each in given}
            operator = self._operators.setdefault((name, repr(kept)), HostOperator(name, kept))
            call = HostCall(begin, end, operator)
            self._calls[thread].append(call)
            if (external := _identity(given.get("External id"))) is not None:
                self._by_external[external] = call

    def sort(self) -> None:
        self.iterations = sorted(self.iterations or self._steps, key=lambda each: each[:2])
        for ranges in self._graphs.values():
            ranges.sort()
        for calls in self._calls.values():
            calls.sort(key=lambda call: (call.begin, -call.end))
            top: HostCall | None = None
            for call in calls:
                if top is not None and call.begin < top.end:
                    call.top = top
                else:
                    top = call

    def enqueued(self, event: _Event, begin: float, us: float) -> DeviceEvent:
        given = event.args
        call = self._by_external.get(_identity(given.get("External id")))
        launch = self._launches.get(_identity(given.get("correlation")))
        thread, at, launched = launch or (None, begin if call is None else call.begin, None)
        device, around = str(given.get("device", event.pid)), self._around(thread, at)
        return DeviceEvent(str(event.name), begin, us, device, event.cat, call, launched, *around)

    def operators(self) -> list[DeviceEvent]:
        events = []
        for thread, calls in self._calls.items():
            for call in calls:
                if call.top is None:
                    name, begin, us = call.operator.name, call.begin, call.end - call.begin
                    around = self._around(thread, begin)
                    events += [DeviceEvent(name, begin, us, "cpu", "cpu_op", call, begin, *around)]
        return events

    def _around(self, thread: Thread | None, at: float) -> tuple[Range | None, Range | None]:
        return _innermost(self.iterations, at), _innermost(self._graphs.get(thread, []), at)


def _innermost(ranges: Sequence[Range], time: float) -> Range | None:
    last = bisect.bisect_right(ranges, time, key=lambda each: each.begin)
    inner = ranges[max(last - _NESTED_RANGES, 0) : last]
    return next((each for each in reversed(inner) if time < each.end), None)


def _time(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _LAST_TIME else None


def _identity(value: Any) -> Identity:
    return value if isinstance(value, (int, str)) else None


RECORDED_CALLS: Final = 10  # of each bucket
_SETTLING_CALLS: Final = 3  # a CUDA graph is recorded by the second call of a bucket


def record_trace(
    out: Path,
    *,
    model: str,
    table: Table | None,
    seqlens: str | Sequence[int] | None,
    dims: str | Sequence[str] | None,
    inputs: Sequence[str],
    dtype: str | None,
    device: str,
    mode: str,
) -> None:
    """Write a trace of *model*, served from *table*, to *out*; gzipped where it ends in ``.gz``.

    The graph of each bucket is compiled anew, called a few times, then called under the profiler,
    each call between marks with the bucket's name. The table is installed as a server does, its
    padding of weights included, and a miss takes inductor's default.
    """
    if mode not in COMPILE_MODES:
        raise SettingsError(f"--mode {mode!r}", f"use one of {', '.join(COMPILE_MODES)}")
    buckets, specs = parse_buckets(seqlens, dims), parse_inputs(inputs)
    import torch

    from warmup.inductor.adapter import compile_model
    from warmup.inductor.kernel_plans import fresh_graphs, watching_plans
    from warmup.inductor.machine import describe_runtime, resolve_device
    from warmup.models.inputs import place_model

    on = resolve_device(device)
    placed = place_model(model, specs, buckets, on, dtype)
    runtime = describe_runtime(on)
    with contextlib.ExitStack() as stack:
        if table is not None:
            asked = InstallRequest(
                table=table, model=placed.module, bundle=False, device=str(on), quiet=True
            )
            handle = stack.enter_context(install_as(asked))
            if handle.refused is not None:
                raise SettingsError(handle.refused, "record on the machine of the table")
        torch.compiler.config.recompile_limit = 8 * len(buckets)
        stack.enter_context(torch.no_grad())
        stack.enter_context(fresh_graphs())
        compiled = compile_model(placed.module, mode)
        plans: dict[str, tuple[GraphPlan, ...]] = {}
        ready: dict[str, Inputs] = {}
        for bucket in buckets:
            given = placed.inputs(bucket)
            with watching_plans() as watch:
                for _ in range(_SETTLING_CALLS):
                    compiled(*given.args, **given.kwargs)
                plans[str(bucket)] = watch.plans()
            ready[str(bucket)] = given
        document, clocks = _recorded(compiled, ready, on)
    digest = None if table is None else digest_of(table)
    origin = runtime.device.name, runtime.torch, digest
    plan = RecordedPlan(plans, RECORDED_CALLS, *origin, clocks)
    raw = json.dumps({**document, PLAN_NAME: plan.to_json()}, separators=(",", ":")).encode()
    try:
        replace_bytes(out, gzip.compress(raw, mtime=0) if out.suffix == ".gz" else raw)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--out {out}: cannot be written ({error})", "name a file") from error


def _recorded(compiled: Any, ready: dict[str, Inputs], device: torch.device) -> tuple[Any, Shape]:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from warmup.measuring.machine import sm_clock_mhz

    is_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    clocks: list[int] = []

    def synchronize() -> None:
        if is_cuda:
            torch.cuda.synchronize(device)

    synchronize()
    with profile(activities=activities, record_shapes=True) as profiler:
        for name, inputs in ready.items():
            compiled(*inputs.args, **inputs.kwargs)  # the profiler's own first call
            synchronize()
            for _ in range(RECORDED_CALLS):
                with record_function(f"{BUCKET_MARK}{name}"):
                    compiled(*inputs.args, **inputs.kwargs)
                    synchronize()
            if is_cuda:  # the clock is that of a call in flight, which is outside of any mark
                compiled(*inputs.args, **inputs.kwargs)
                clock = sm_clock_mhz(device)
                clocks += [] if clock is None else [clock]
                synchronize()
    with temporary_folder("warmup-trace-") as folder:
        path = folder / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_bytes()), tuple(clocks)
