"""`MachineWatch`: what disturbs measurements on a machine; `measured_peaks`: its highest rates.

Data sheets do not serve as peaks: they list boost clocks and sparse rates, and lack devices. A peak
is the best of several short runs, so that power limits and heat do not lower it.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import platformdirs
import torch

from warmup.core.device import BUSY_SHARE, NOT_CHECKED, MachineState, slug_of
from warmup.core.errors import TableFormatError
from warmup.core.files import replace_bytes
from warmup.core.roofline import Peaks, PeaksJson, gbps_of, tflops_of, torch_name
from warmup.core.rows import L2
from warmup.core.strict_json import read_json
from warmup.core.trial import TimedCall
from warmup.measuring.clock import batch_of
from warmup.measuring.reference import fp32_precision

# `Condition`: what may disturb measurements on a GPU: other processes, load, throttled clocks.

# NVML's reasons for a lowered clock (nvml.h, nvmlClocksEventReason*). Those for an idle GPU and for
# clocks set by the user are left out: they do not disturb a measurement. Nor does the power cap,
# under which every large matmul runs: the candidates of a trial take turns at the same clock.
_THROTTLE_REASONS: Final = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_POWER_CAP: Final = 0x4
_BUSY_PERCENT: Final = 5
_CLOCK_DROP: Final = 0.8  # full power takes an H200 from 1980 to 1560 MHz


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The state of a GPU at one moment. Clocks are in MHz, memory in MiB.

    ``unknown`` says what could not be read; the other fields are empty then. ``others`` counts
    visible processes on the GPU that are not ours; ``used_percent`` is over NVML's last sampling
    period.
    """

    unknown: str | None = None
    clock_mhz: int | None = None
    used_percent: int | None = None
    others: int = 0
    others_mib: int = 0
    throttled_by: tuple[str, ...] = field(default=())
    is_power_capped: bool = False

    @property
    def complaints(self) -> tuple[str, ...]:
        phrases = []
        if self.others:
            holders = "another process holds" if self.others == 1 else f"{self.others} others hold"
            phrases.append(f"{holders} {self.others_mib} MiB of it")
        if self.used_percent is not None and self.used_percent > _BUSY_PERCENT:
            phrases.append(f"it is {self.used_percent} % busy")
        if self.throttled_by:
            phrases.append(f"its clock is throttled: {', '.join(self.throttled_by)}")
        return tuple(phrases)


def read_condition(device: torch.device, own: frozenset[int] = frozenset()) -> Condition:
    """Return the condition of *device*, not counting *own* process IDs; empty for a CPU."""
    if device.type != "cuda":
        return Condition()  # on a CPU the spread of the times shows disturbances
    try:
        import pynvml
    except ImportError:
        return Condition(unknown="other processes, clocks and throttling (no nvidia-ml-py)")
    try:
        pynvml.nvmlInit()
        try:
            return _condition_of(pynvml, _handle(pynvml, device), own)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Condition(unknown=f"other processes, clocks and throttling ({error})")


def sm_clock_mhz(device: torch.device) -> int | None:
    """Return the current SM clock of *device*, None where it cannot be read."""
    return read_condition(device).clock_mhz


def clock_note(under_load: Sequence[int], *, is_power_capped: bool) -> str | None:
    """Return at which SM clocks, in MHz, rows were timed *under_load*; None if equal enough."""
    # That is no doubt: the candidates of a row are timed in turns, at one clock.
    cause = " at full power" if is_power_capped else ""
    if not under_load:
        return "the SM clock is lowered at full power" if is_power_capped else None
    low, high = min(under_load), max(under_load)
    if low >= high * _CLOCK_DROP and not is_power_capped:
        return None
    span = f"{low} MHz" if low == high else f"{low} to {high} MHz"
    return f"the SM clock was {span}{cause}; a row's times and peak are at the row's own clock"


def _handle(pynvml: Any, device: torch.device) -> Any:
    # CUDA_VISIBLE_DEVICES renumbers devices for CUDA and not for NVML; the UUID is the same.
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def _condition_of(pynvml: Any, handle: Any, own: frozenset[int]) -> Condition:
    processes = [
        process
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        if process.pid not in own
    ]
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return Condition(
        clock_mhz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        used_percent=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        others=len(processes),
        others_mib=sum((process.usedGpuMemory or 0) >> 20 for process in processes),
        throttled_by=tuple(name for bit, name in _THROTTLE_REASONS.items() if reasons & bit),
        is_power_capped=bool(reasons & _POWER_CAP),
    )


# `CpuReading`: CPU seconds used on this machine, and how much of it other processes took.

_US: Final = 1e6
_IDLE: Final = (3, 4)  # columns of idle and iowait in a line of /proc/stat
_TIMES: Final = 8  # columns of times; those after them, of guests, are counted before
_PARENT: Final = 1  # columns of /proc/PID/stat after the command
_PROCESS_TIMES: Final = slice(11, 15)  # utime, stime, cutime, cstime


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds used until ``at``, of `time.monotonic`, by all processes and by this family.

    ``cpus`` CPUs may be used by this process. ``quota`` is how many its cgroup may use at a time,
    and ``group_s`` what all processes in that cgroup used.
    """

    at: float
    cpus: int
    all_s: float
    own_s: float
    quota: float = math.inf
    group_s: float = 0.0

    @property
    def usable(self) -> float:
        return min(self.cpus, self.quota)


def read_cpus(root: Path = Path("/")) -> CpuReading | None:
    """Return the CPU seconds used until now; None where the machine does not say."""
    try:
        allowed = os.sched_getaffinity(0)
        all_s = _busy_seconds((root / "proc/stat").read_text(), allowed)
        own_s = _own_seconds(root / "proc")
    except (AttributeError, OSError, ValueError, IndexError):
        return None  # not Linux, or a sandbox without /proc
    quota, group_s = _quota(root)
    return CpuReading(time.monotonic(), len(allowed), all_s, own_s, quota, group_s)


def others_share(before: CpuReading, after: CpuReading) -> float:
    """Return the share of the usable CPUs that other processes took between two readings, 0 to 1.

    Others take CPUs of the machine, or a part of the cgroup's quota. CPUs that the quota forbids to
    use are nobody's loss.
    """
    seconds = after.at - before.at
    if seconds <= 0:
        return 0.0
    own = (after.own_s - before.own_s) / seconds
    on_cpus = max((after.all_s - before.all_s) / seconds - own, 0.0)
    free = after.cpus - on_cpus
    if after.quota < math.inf:
        in_group = max((after.group_s - before.group_s) / seconds - own, 0.0)
        free = min(free, after.quota - in_group)
    return min(max(1 - free / after.usable, 0.0), 1.0)


def _busy_seconds(stat: str, allowed: set[int]) -> float:
    ticks, seen = 0, 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in allowed:
            times = [int(column) for column in columns[:_TIMES]]
            ticks += sum(times) - sum(times[column] for column in _IDLE)
            seen += 1
    if seen < len(allowed) or not ticks:
        raise ValueError("no times of these CPUs")
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_seconds(proc: Path) -> float:
    ended, family = os.times(), family_of(os.getpid(), proc)
    ticks = sum(family.values()) - family[os.getpid()]
    own_s = ended.user + ended.system + ended.children_user + ended.children_system
    return own_s + ticks / os.sysconf("SC_CLK_TCK")


def family_of(pid: int, proc: Path) -> dict[int, int]:
    """Return the ticks of *pid* and of all processes that descend from it, by ID."""
    # Raises OSError, ValueError or IndexError where *proc* cannot be read, or is of another form.
    children, ticks = defaultdict[int, list[int]](list), {pid: 0}
    for each, parent, used in _processes(proc):
        children[parent].append(each)
        ticks[each] = used
    family, ahead = [pid], [pid]
    while ahead:
        fresh = [child for child in children[ahead.pop()] if child not in family]
        family += fresh
        ahead += fresh
    return {each: ticks[each] for each in family}


def descendants_of(pid: int, root: Path = Path("/proc")) -> frozenset[int]:
    """Return *pid* and all processes that descend from it; *pid* alone where that is not known."""
    with suppress(OSError, ValueError, IndexError):
        return frozenset(family_of(pid, root))
    return frozenset({pid})


def _processes(proc: Path) -> Iterator[tuple[int, int, int]]:
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue  # it has ended meanwhile
        columns = text.rpartition(")")[2].split()  # the command may contain anything
        yield int(folder.name), int(columns[_PARENT]), sum(map(int, columns[_PROCESS_TIMES]))


def _quota(root: Path) -> tuple[float, float]:
    """Return the CPUs that the cgroup (v2), or one that it is in, may use, and the seconds used."""
    narrowest, base = (math.inf, 0.0), root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return narrowest
    for own in (base / line[3:].lstrip("/") for line in lines if line.startswith("0::")):
        for folder in (own, *(above for above in own.parents if above.is_relative_to(base))):
            with suppress(OSError, ValueError, KeyError, ZeroDivisionError):  # "max", or the root
                quota, period = (folder / "cpu.max").read_text().split()
                used = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
                limit = int(quota) / int(period), int(used["usage_usec"]) / _US
                narrowest = min(narrowest, limit)
    return narrowest


_WINDOW_S: Final = 1.0  # shorter spans are too few ticks of /proc/stat
_LOOK_AGAIN_S: Final = 0.5

# Called with what disturbs and for how many seconds at most the build waits.
OnWait = Callable[[str, float], None]


@dataclass
class MachineWatch:
    """Watches the machine of *device* during a build: load on a CPU, `Condition` on a GPU.

    ``own`` returns the process IDs of the build. ``device_lock`` is open while this process
    measures, with the wait for quiet: it lets one of several processes of a build measure at a
    time.
    """

    device: torch.device
    own: Callable[[], frozenset[int]] = lambda: frozenset({os.getpid()})
    read: Callable[[], CpuReading | None] = read_cpus
    device_lock: Callable[[], AbstractContextManager[None]] = nullcontext
    clocks: list[int] = field(default_factory=list)  # SM clocks seen after trials, in MHz
    _wait_s: float = 0.0
    _on_wait: OnWait = lambda _reason, _seconds: None
    _readings: list[CpuReading] = field(default_factory=list)
    _shares: list[float] = field(default_factory=list)
    _measured: int = 0
    _waited_s: float = 0.0

    def start(self, wait_s: float, on_wait: OnWait) -> None:
        """From now on wait before a measurement while the machine is busy, *wait_s* in all."""
        self._wait_s, self._on_wait = wait_s, on_wait

    @contextmanager
    def measuring(self) -> Iterator[Callable[[], bool]]:
        """Wait for quiet, then record the load of the measurement inside.

        Gives a function that returns, after the context, whether the measurement was disturbed.
        """
        shares: list[float] = []
        with self.device_lock():
            self.wait_for_quiet()
            self._note()
            yield lambda: any(share > BUSY_SHARE for share in shares)
        self._measured += 1
        if (share := self._share_of_late()) is not None:
            shares.append(share)
            self._shares.append(share)

    def wait_for_quiet(self) -> None:
        started, is_told = time.monotonic(), False
        while self._waited_s < self._wait_s and (reason := self._disturbance()) is not None:
            if not is_told:
                self._on_wait(reason, self._wait_s - self._waited_s)
                is_told = True
            time.sleep(_LOOK_AGAIN_S)
            now = time.monotonic()
            self._waited_s, started = self._waited_s + now - started, now

    def state(self) -> MachineState:
        last = self._readings[-1] if self._readings else None
        complaints, notes = self._look(after_build=True)
        return MachineState(
            measured=self._measured,
            disturbed=sum(share > BUSY_SHARE for share in self._shares),
            cpus=last.usable if last else 0.0,
            worst_share=max(self._shares, default=None),
            waited_s=self._waited_s,
            complaints=complaints,
            notes=notes,
        )

    def remarks(self) -> tuple[str, ...]:
        complaints, notes = self._look()
        return (*complaints, *notes)

    def _look(self, *, after_build: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the complaints about a GPU and the notes; *after_build* its load is its own."""
        condition = read_condition(self.device, self.own())
        if condition.unknown is not None:
            return (), (f"{NOT_CHECKED}{condition.unknown}",)
        if after_build:
            condition = replace(condition, used_percent=None)
        note = clock_note(self.clocks, is_power_capped=condition.is_power_capped)
        return condition.complaints, () if note is None else (note,)

    def _disturbance(self) -> str | None:
        if self.device.type != "cpu":
            found = self._gpu_load() if not self._measured else ()  # later the load is the build's
            return f"the GPU: {', '.join(found)}" if found else None
        self._note()
        while self._readings and self._span_s() < _WINDOW_S:
            time.sleep(_LOOK_AGAIN_S)
            self._note()
        share = self._share_of_late()
        if share is None or share <= BUSY_SHARE:
            return None
        return f"other processes take {share:.0%} of {self._readings[-1].usable:g} CPUs"

    def _gpu_load(self) -> tuple[str, ...]:
        for idle_s in (0.0, _WINDOW_S):  # a moment ago this process may have used it
            time.sleep(idle_s)
            # Memory of other processes disturbs nothing by itself, and stays for long.
            condition = replace(read_condition(self.device, self.own()), others=0)
            if not condition.complaints:
                return ()
        return condition.complaints

    def _note(self) -> None:
        """Read the CPUs; keep the last readings that span at least `_WINDOW_S`."""
        if self.device.type != "cpu" or (reading := self.read()) is None:
            return
        self._readings.append(reading)
        while len(self._readings) > 2 and reading.at - self._readings[1].at >= _WINDOW_S:  # noqa: PLR2004  the two that span the window
            del self._readings[0]

    def _span_s(self) -> float:
        return self._readings[-1].at - self._readings[0].at

    def _share_of_late(self) -> float | None:
        self._note()
        if len(self._readings) < 2 or not self._span_s():  # noqa: PLR2004  a share needs two
            return None
        return others_share(self._readings[0], self._readings[-1])


_PEAKS_FORMAT: Final = 6
_COPY_BYTES: Final = 4 * 2**30
_CPU_COPY_BYTES: Final = 2**28  # beyond any last cache of one socket
# m, n, k. A long sum reaches more than a square product does: fewer results for as much work.
_PEAK_SHAPES: Final = (
    (4096, 4096, 4096),
    (6144, 6144, 6144),
    (8192, 8192, 8192),
    (2048, 4096, 14336),
)
_CPU_PEAK_SHAPES: Final = ((1024, 1024, 1024),)
_PEAK_ROUNDS: Final = 8
_LOADING_CALLS: Final = 20  # of a large matmul: longer than a clock takes to be read
_CPU_PEAK_SECONDS: Final = 0.25  # for the rounds of one rate, beyond the first
_MAX_PEAKS_FILE_BYTES: Final = 16 * 1024
_PEAK_DTYPES: Final = ("bf16", "f16", "tf32", "f32", "i8", "f8_e4m3fn")
_CPU_PEAK_DTYPES: Final = ("bf16", "f32")
# Compute capabilities whose data sheets have one rate for both 8-bit dtypes. The library's products
# of integers reach two thirds of it (H100, torch 2.11), Triton's more.
_EQUAL_IN_8_BITS: Final = ((8, 9), (9, 0), (10, 0))


class _PeaksFile(msgspec.Struct, forbid_unknown_fields=True):
    format: Annotated[int, msgspec.Meta(ge=_PEAKS_FORMAT, le=_PEAKS_FORMAT)]
    peaks: PeaksJson


def measured_peaks(device: torch.device, folder: Path | None = None) -> Peaks | None:
    """Return the peaks of *device*, measured now unless *folder* has them; None of other devices.

    *folder* is the user's cache folder by default. A CPU's are for torch's number of threads.
    """
    if device.type not in ("cuda", "cpu"):
        return None
    path = (folder or platformdirs.user_cache_path("inductor-warmup") / "peaks") / _file_name(
        device
    )
    known = _read_peaks(path)
    if known is not None:
        return known
    peaks = measure_peaks(device)
    _write_peaks(path, peaks)
    return peaks


def measure_peaks(device: torch.device) -> Peaks:
    """Return the highest rates of copies, reads and matmuls that *device* reaches now."""
    # Bandwidth is the better of a large copy (bytes read plus bytes written) and a large read.
    tflops, clocks = {}, {}
    for name in _PEAK_DTYPES if device.type == "cuda" else _CPU_PEAK_DTYPES:
        if best := _best_matmul(name, device):
            rate, call = best
            tflops[name] = float(f"{rate:.4g}")
            if (clock := _clock_under(call, device)) is not None:
                clocks[name] = clock
    is_gpu = device.type == "cuda"
    is_equal = is_gpu and torch.cuda.get_device_capability(device) in _EQUAL_IN_8_BITS
    if is_equal and tflops.get("i8", math.inf) < tflops.get("f8_e4m3fn", 0.0):
        tflops["i8"] = tflops["f8_e4m3fn"]
        if "f8_e4m3fn" in clocks:
            clocks["i8"] = clocks["f8_e4m3fn"]
    return Peaks(
        tflops=tflops,
        gbps=round(_memory_gbps(device), 1),
        clock_mhz=sm_clock_mhz(device),
        measured=dt.datetime.now(dt.UTC).date().isoformat(),
        clocks=clocks,
    )


def _best_us(call: TimedCall, device: torch.device) -> float:
    batch = batch_of(call, device, L2.WARM, 1)
    best, started = batch.time(), time.monotonic()
    for _ in range(_PEAK_ROUNDS - 1):
        if device.type == "cpu" and time.monotonic() - started > _CPU_PEAK_SECONDS:
            break
        best = min(best, batch.time())
    return best


def _memory_gbps(device: torch.device) -> float:
    size = _CPU_COPY_BYTES
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size = min(_COPY_BYTES, free // 4)
    source = torch.randint(0, 2**31 - 1, (size // 8,), device=device)
    floats, target = source.view(torch.float32), torch.empty_like(source)
    copied = _best_us(lambda _: target.copy_(source), device)
    read = _best_us(lambda _: torch.amax(floats), device)
    return max(gbps_of(2 * size, copied), gbps_of(size, read))


def _best_matmul(name: str, device: torch.device) -> tuple[float, TimedCall] | None:
    found = []
    precision = "tf32" if name == "tf32" else "ieee"
    dtype: torch.dtype = getattr(torch, torch_name("f32" if name == "tf32" else name))
    for shape in _PEAK_SHAPES if device.type == "cuda" else _CPU_PEAK_SHAPES:
        try:
            with fp32_precision(precision, torch.backends.cuda.matmul):
                call = _matmul(dtype, *shape, device)
                rate = tflops_of(2 * math.prod(shape), _best_us(call, device))
        except RuntimeError:  # no kernel for this dtype on this device, or no memory
            continue
        found.append((rate, call))
    return max(found, key=lambda one: one[0], default=None)


def _clock_under(call: TimedCall, device: torch.device) -> int | None:
    """Return the SM clock under *call*: an idle GPU soon reports a higher clock."""
    if device.type != "cuda":
        return None
    for number in range(_LOADING_CALLS):
        call(number)
    clock = sm_clock_mhz(device)
    torch.cuda.synchronize(device)
    return clock


def _matmul(dtype: torch.dtype, m: int, n: int, k: int, device: torch.device) -> TimedCall:
    if dtype is torch.int8:
        a, b = (torch.randint(-8, 8, sizes, device=device).to(dtype) for sizes in ((m, k), (n, k)))
        multiply: Callable[..., torch.Tensor] = torch._int_mm  # noqa: SLF001  its only name
        return lambda _: multiply(a, b.t())
    a, b = (torch.randn(sizes, device=device).to(dtype) for sizes in ((m, k), (n, k)))
    if dtype.itemsize == 1:
        one = torch.ones((), device=device)
        scaled = partial(torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True)  # noqa: SLF001
        return lambda _: scaled(a, b.t(), one, one)
    out = torch.empty(m, n, dtype=dtype, device=device)
    return lambda _: torch.mm(a, b.t(), out=out)


def _file_name(device: torch.device) -> str:
    if device.type == "cpu":
        capability = torch.backends.cpu.get_cpu_capability()
        words = f"cpu-{platform.node()}-{capability}-{torch.get_num_threads()}-threads"
    else:
        properties = torch.cuda.get_device_properties(device)
        words = f"{properties.name}-{properties.uuid}"
    return f"{slug_of(f'{words}-torch{torch.__version__}')}.json"


def _read_peaks(path: Path) -> Peaks | None:
    try:
        if path.stat().st_size > _MAX_PEAKS_FILE_BYTES:
            return None
        return read_json(path.read_bytes(), _PeaksFile, str(path))[0].peaks.peaks()
    except (OSError, TableFormatError):
        return None


def _write_peaks(path: Path, peaks: Peaks) -> None:
    content = msgspec.to_builtins(_PeaksFile(_PEAKS_FORMAT, PeaksJson.of(peaks)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, f"{json.dumps(content, indent=2, sort_keys=True)}\n".encode())
    except OSError:
        return  # a read-only home folder: the next process measures again
