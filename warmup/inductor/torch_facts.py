"""`collect_facts`: what this machine offers to torch.compile, as plain values.

torch is imported inside the functions, since a failing import of torch is one of the facts.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warmup.core.device import Runtime
from warmup.core.errors import AdapterError, SettingsError
from warmup.inductor import connect
from warmup.inductor.host_facts import (
    Compiler,
    Folder,
    c_compiler,
    cache_folders,
    cpp_compiler,
    remove_created,
    temporary_error,
    version_of,
)

if TYPE_CHECKING:
    import torch

_DRIVER_FOLDER: Final = Path("/proc/driver/nvidia")
_TRITON_NEED: Final = re.compile(r"(?:pytorch-)?triton(?:-rocm|-xpu)?\s*\(?([=~<>!][^;)]*)")


@dataclass(frozen=True, slots=True)
class Cuda:
    """CUDA versions of torch and the driver, the newest that it supports; None where missing.

    ``message`` is torch's warning when it finds no device.
    """

    torch: str | None = None
    hip: str | None = None
    driver: str | None = None
    has_driver_folder: bool = False
    sees_device: bool = False
    message: str | None = None
    visible_devices: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Other processes on the device; ``unknown`` says why they could not be read."""

    pids: tuple[int, ...] = ()
    busy_percent: int | None = None
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The requested device; without ``runtime``, ``error`` says why it cannot be used.

    The other fields are empty on a CPU. ``memory`` is (free, total) in bytes; ``online`` names
    other autotuners of torch that are switched on and run at call time.
    """

    runtime: Runtime | None = None
    error: str | None = None
    memory: tuple[int, int] | None = None
    load: Load | None = None
    online: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts about this machine. With a ``torch_error`` the fields below it are empty.

    ``target`` is None when the temporary or the cache folder is unusable: inductor writes to them.
    """

    requested: str
    torch: str | None = None
    torch_error: str | None = None
    on_gpu: bool = False
    cuda: Cuda = field(default_factory=Cuda)
    triton: str | None = None
    triton_wanted: str | None = None
    compiler: Compiler | None = None
    temporary_error: str | None = None
    folders: tuple[Folder, ...] = ()
    target: Target | None = None


def collect_facts(requested: str) -> Facts:
    """Return the facts about this machine for the device *requested*; leaves no files behind.

    Raises SettingsError where *requested* has no valid form.
    """
    try:
        import torch

        cuda = _cuda()
        on_gpu = requested.startswith("cuda") or (requested == "auto" and cuda.sees_device)
        no_temporary = temporary_error()
        folders = cache_folders(on_gpu=on_gpu)
        try:
            target = None if no_temporary or folders[0].error else _target(requested)
        finally:
            remove_created(folders)
    except (AdapterError, ImportError, OSError) as error:
        return Facts(requested=requested, torch=version_of("torch"), torch_error=str(error))
    return Facts(
        requested=requested,
        torch=torch.__version__,
        on_gpu=on_gpu,
        cuda=cuda,
        triton=version_of("triton"),
        triton_wanted=_triton_wanted(),
        compiler=c_compiler() if on_gpu else cpp_compiler(),
        temporary_error=no_temporary,
        folders=folders,
        target=target,
    )


def _cuda() -> Cuda:
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sees_device = torch.cuda.is_available()
    return Cuda(
        torch=torch.version.cuda,
        hip=torch.version.hip,
        driver=_driver_cuda(),
        has_driver_folder=_DRIVER_FOLDER.exists(),
        sees_device=sees_device,
        message=_first_line(str(caught[0].message)) if caught and not sees_device else None,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _driver_cuda() -> str | None:
    number = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else f"{number.value // 1000}.{number.value % 1000 // 10}"


def _target(requested: str) -> Target:
    connect()
    import torch

    from warmup.inductor.compile_watch import online_tuners
    from warmup.inductor.machine import describe_runtime, resolve_device

    try:
        device = resolve_device(requested)
    except SettingsError as error:
        if re.fullmatch(r"cuda(:[0-9]{1,3})?", requested):  # a valid name of a missing device
            return Target(error=str(error.args[0]))
        raise
    try:
        runtime = describe_runtime(device)
        if device.type == "cpu":
            return Target(runtime)
        load = _load(device, runtime)  # before this process opens the device itself
        memory = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        return Target(error=_first_line(str(error)))
    return Target(runtime, None, memory, load, tuple(online_tuners()))


def _triton_wanted() -> str | None:
    try:
        needs = importlib.metadata.requires("torch") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    matches = (_TRITON_NEED.match(need) for need in needs)
    return next((match[1].strip() for match in matches if match), None)


def _load(device: torch.device, runtime: Runtime) -> Load:
    import torch

    if runtime.device.vendor != "nvidia":
        return Load(unknown=f"not read on {runtime.device.vendor}")
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return Load(unknown="nvidia-ml-py is not installed")
    kind = "GPU" if runtime.device.mig is None else "MIG"
    try:
        nvml.nvmlInit()
        uuid = f"{kind}-{torch.cuda.get_device_properties(device).uuid}"
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        pids = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        percent = None if kind == "MIG" else nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    except nvml.NVMLError as error:
        return Load(unknown=f"NVML says {error}")
    return Load(tuple(sorted(pids - {os.getpid()})), percent)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
