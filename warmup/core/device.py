"""`Runtime`: a device and its software versions, and how two of them differ.

Two GPUs are the same device when vendor, architecture, number of multiprocessors, memory class and
MIG profile agree; on CPU it is model, instruction set and threads. The marketing name of a GPU is
advisory and may be empty. Nothing here looks at the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

# The same card reports slightly different memory with another driver or with ECC: an H100 79 or
# 80 GiB, an A100 39 or 40.
_MEMORY_CLASS_GIB: Final = 1
# With fewer, inductor offers no GEMM template (is_big_gpu in torch/_inductor/utils.py, 2.11 to
# 2.15).
_LEAST_SMS: Final = 68
_CLOSED_GFX: Final = re.compile(r"gfx([1-8]|10)[0-9a-f]{2}")


def slug_of(name: str) -> str:
    """Return *name* as a part of a file name: lower case, with dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU or CPU. GPU fields are None on CPU, CPU fields are None on a GPU.

    ``arch`` is ``sm_90`` or ``gfx942`` on a GPU and the instruction set on CPU; ``memory_gib`` is
    the total device memory rounded to whole GiB; ``mig`` is the MIG profile.
    """

    type: str
    vendor: str
    name: str
    arch: str
    sm_count: int | None = None
    memory_gib: int | None = None
    mig: str | None = None
    threads: int | None = None

    @property
    def slug(self) -> str:
        """The name in file-name form, ``[a-z0-9.-]`` only: ``nvidia-h200``."""
        return slug_of(self.name) or f"{self.type}-{self.arch.lower().replace('_', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A device and the versions of its software; None for software that is not installed."""

    device: Device
    torch: str
    triton: str | None = None
    cuda: str | None = None
    driver: str | None = None
    cublas: str | None = None

    def __str__(self) -> str:
        device = self.device
        facts = [device.arch]
        facts += [f"{device.sm_count} SMs"] if device.sm_count is not None else []
        facts += [f"{device.memory_gib} GiB"] if device.memory_gib is not None else []
        facts += [f"MIG {device.mig}"] if device.mig is not None else []
        facts += [f"threads {device.threads}"] if device.threads is not None else []
        software = [f"torch {self.torch}"]
        software += [f"triton {self.triton}"] if self.triton and device.type != "cpu" else []
        return f"{device.name or device.type} ({', '.join(facts)}) with {' and '.join(software)}"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A field in which a table and this machine differ; a hard one makes every lookup a miss."""

    field: str
    expected: str
    found: str
    is_hard: bool

    def __str__(self) -> str:
        return f"{self.field}: table {self.expected}, here {self.found}"


def compare_runtimes(table: Runtime, here: Runtime) -> tuple[Mismatch, ...]:
    """Return each field in which *table* and *here* differ, device fields first.

    Hard: device identity, the torch minor and, on a GPU, the Triton minor. Soft: the rest.
    """
    mismatches: list[Mismatch] = []

    def compare(field: str, expected: object, actual: object, *, hard: bool) -> None:
        if expected != actual:
            mismatches.append(Mismatch(field, _shown(expected), _shown(actual), hard))

    on_cpu = table.device.type == "cpu"
    for field in ("type", "vendor", "arch", "sm_count", "memory_gib", "mig", "threads"):
        expected, actual = getattr(table.device, field), getattr(here.device, field)
        is_memory = field == "memory_gib" and None not in (expected, actual)
        if is_memory and abs(expected - actual) <= _MEMORY_CLASS_GIB:
            continue
        compare(f"device.{field}", expected, actual, hard=True)
    compare("device.name", table.device.name, here.device.name, hard=on_cpu)
    compare("torch minor", minor_of(table.torch), minor_of(here.torch), hard=True)
    if not on_cpu:
        compare("triton minor", minor_of(table.triton), minor_of(here.triton), hard=True)
        compare("cuda", table.cuda, here.cuda, hard=False)
        compare("driver", table.driver, here.driver, hard=False)
        compare("cublas", table.cublas, here.cublas, hard=False)
    for field in ("torch", "triton"):
        expected, actual = getattr(table, field), getattr(here, field)
        if minor_of(expected) == minor_of(actual) and not (on_cpu and field == "triton"):
            compare(field, _public(expected), _public(actual), hard=False)
    return tuple(mismatches)


def closed_gate(device: Device) -> Mismatch | None:
    """Return what *device* lacks for inductor to offer GEMM templates on it, None if nothing.

    Without templates no row whose winner is a Triton template can be used.
    """
    if device.type == "cpu":
        return None
    if device.vendor == "amd":
        if _CLOSED_GFX.fullmatch(device.arch) is None:
            return None
        return Mismatch("template gate", "gfx9, gfx11 or later", device.arch, is_hard=True)
    if device.sm_count is None or device.sm_count >= _LEAST_SMS:
        return None
    wanted = f"at least {_LEAST_SMS} SMs"
    return Mismatch("template gate", wanted, f"{device.sm_count} SMs", is_hard=True)


def minor_of(version: str | None) -> str | None:
    """Return the minor of *version*, ``2.13`` of ``2.13.0+cpu``; None for None."""
    return None if version is None else ".".join(version.split("+")[0].split(".")[:2])


def _shown(value: object) -> str:
    return "none" if value is None else str(value) or "empty"


def _public(version: str | None) -> str | None:
    return None if version is None else version.split("+")[0]


# `MachineState`: what disturbed the measurements of a build.

BUSY_SHARE: Final = 0.10  # of the CPUs; above it other processes disturb a measurement
NOT_CHECKED: Final = "not checked: "  # begins a note that is equal for all devices


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """What disturbed the measurements of a build.

    ``worst_share`` is the largest share of the ``cpus`` usable CPUs that other processes took
    during a measurement, None where it was not read (on a GPU, or outside of Linux). ``complaints``
    are about a GPU, after the last measurement, and ``notes`` what is no reason to doubt a winner:
    a clock that full power lowers, what was not checked. ``disturbed`` of ``measured`` problems
    were measured while other processes took more than `BUSY_SHARE`. ``waited_s`` seconds passed in
    waiting for quiet.
    """

    measured: int = 0
    disturbed: int = 0
    cpus: float = 0.0
    worst_share: float | None = None
    waited_s: float = 0.0
    complaints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def united(states: Iterable[MachineState]) -> MachineState:
    """Return one state for *states*, those of several processes or of parts of a build."""
    each = tuple(states)
    shares = [state.worst_share for state in each if state.worst_share is not None]
    complaints = dict.fromkeys(text for state in each for text in state.complaints)
    notes = dict.fromkeys(text for state in each for text in state.notes)
    return MachineState(
        measured=sum(state.measured for state in each),
        disturbed=sum(state.disturbed for state in each),
        cpus=max((state.cpus for state in each), default=0.0),
        worst_share=max(shares, default=None),
        waited_s=sum(state.waited_s for state in each),
        complaints=tuple(complaints),
        notes=tuple(notes),
    )


# `ASSUMED_DEVICES`: the facts of GPUs that `explain --assume` compiles for without having them.


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedDevice:
    """A GPU by its facts: ``capability`` is (major, minor), shared memory and cache are in bytes.

    ``gbps`` is the bandwidth of its memory, ``tflops`` the dense rate by dtype, as published: for
    the reader. Torch's heuristics calculate their own from the largest clocks and the bus width.
    """

    name: str
    capability: tuple[int, int]
    sm_count: int
    memory_gib: int
    block_bytes: int
    sm_bytes: int
    l2_bytes: int
    clock_mhz: int
    memory_clock_mhz: int
    bus_bits: int
    gbps: float
    tflops: Mapping[str, float]

    @property
    def compute_capability(self) -> int:
        """The capability as a number, such as 90."""
        major, minor = self.capability
        return 10 * major + minor


_H200: Final = AssumedDevice(
    name="NVIDIA H200",
    capability=(9, 0),
    sm_count=132,
    memory_gib=140,
    block_bytes=232448,
    sm_bytes=233472,
    l2_bytes=50 << 20,
    clock_mhz=1980,
    memory_clock_mhz=3201,
    bus_bits=6144,
    gbps=4800.0,
    tflops={"bf16": 989.4, "f16": 989.4, "tf32": 494.7, "f32": 66.9},
)
ASSUMED_DEVICES: Final[Mapping[str, AssumedDevice]] = {
    "h200": _H200,
    "h100": replace(  # the same chip with another memory
        _H200,
        name="NVIDIA H100 80GB HBM3",
        memory_gib=79,
        memory_clock_mhz=2619,
        bus_bits=5120,
        gbps=3350.0,
    ),
    "a100": AssumedDevice(
        name="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        sm_count=108,
        memory_gib=79,
        block_bytes=166912,
        sm_bytes=167936,
        l2_bytes=40 << 20,
        clock_mhz=1410,
        memory_clock_mhz=1593,
        bus_bits=5120,
        gbps=2039.0,
        tflops={"bf16": 312.0, "f16": 312.0, "tf32": 156.0, "f32": 19.5},
    ),
}


# `CallCost`: what a compiled call of a bucket costs the host and the device.


@dataclass(frozen=True, slots=True)
class CallCost:
    """Microseconds of a call launched alone: of the host to enqueue it, of the device to run it.

    ``left_out`` repeated layers of the model were left out of the call.
    """

    host_us: float
    device_us: float
    left_out: int = 0

    @property
    def is_host_limited(self) -> bool:
        return self.host_us > self.device_us

    @property
    def launched_us(self) -> float:
        """Microseconds between two calls that are launched one by one."""
        return max(self.host_us, self.device_us)
