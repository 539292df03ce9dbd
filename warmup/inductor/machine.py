"""`describe_runtime`: the device and the versions of this machine as a `Runtime`."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from pathlib import Path

import torch
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler

from warmup.core.errors import SettingsError
from warmup.core.runtime import Device, Runtime
from warmup.core.units import GIB

_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def resolve_device(wanted: str) -> torch.device:
    """Return the device for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        SettingsError: *wanted* has another form, or this machine has no such device.
    """
    if wanted == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", wanted):
        raise SettingsError(f"--device {wanted!r} is not a device", "use auto, cpu, cuda or cuda:N")
    device = torch.device(wanted)
    if device.type == "cuda":
        index = device.index or 0
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise SettingsError(
                f"--device {wanted}: there are {torch.cuda.device_count()} CUDA devices here",
                "name one that exists, or use --device cpu",
            )
        return torch.device("cuda", index)
    return device


def describe_runtime(device: torch.device) -> Runtime:
    """Return the runtime that a table tuned on *device* by this process records."""
    if device.type == "cpu":
        return Runtime(device=_cpu(), torch=str(torch.__version__), triton=_version("triton"))
    return Runtime(
        device=_gpu(device),
        torch=str(torch.__version__),
        triton=_version("triton"),
        cuda=torch.version.cuda or torch.version.hip,
        driver=_driver(),
        cublas=_version("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
    )


def check_compiler(device: torch.device) -> None:
    """Check that inductor finds the C++ compiler that it needs on *device*.

    Raises:
        SettingsError: *device* is a CPU and there is no C++ compiler.
    """
    if device.type != "cpu":
        return
    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError) as error:
        raise SettingsError(
            "inductor finds no C++ compiler, which it needs on CPU",
            "install g++ or clang++, or name one in the variable CXX",
        ) from error


def _gpu(device: torch.device) -> Device:
    properties = torch.cuda.get_device_properties(device)
    is_amd = torch.version.hip is not None
    mig = re.search(r"MIG (\S+)", properties.name)
    arch = (
        properties.gcnArchName.split(":")[0]
        if is_amd
        else f"sm_{properties.major}{properties.minor}"
    )
    return Device(
        type="cuda",
        vendor="amd" if is_amd else "nvidia",
        name=properties.name.strip(),
        arch=arch,
        sm_count=properties.multi_processor_count,
        memory_gib=round(properties.total_memory / GIB),
        mig=mig[1] if mig else None,
    )


def _cpu() -> Device:
    name, vendor = platform.machine(), "unknown"
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    if match := re.search(r"^model name[ \t]*:[ \t]*(\S.*)$", cpuinfo, re.MULTILINE):
        name = match[1].strip()
    if match := re.search(r"^vendor_id[ \t]*:[ \t]*(\S+)[ \t]*$", cpuinfo, re.MULTILINE):
        vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(match[1], match[1].lower())
    return Device(
        type="cpu",
        vendor=vendor,
        name=name,
        arch=f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        threads=torch.get_num_threads(),
    )


def _version(*distributions: str) -> str | None:
    for distribution in distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _driver() -> str | None:
    try:
        match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", _DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        return None
    return match[1] if match else None
