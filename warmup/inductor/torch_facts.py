"""`collect_facts`: what this machine offers to torch.compile, as plain values.

torch is imported inside the functions, since a failing import of torch is one of the facts. Among
them are the host compiler (`Compiler`) and the folders of a compile (`Folder`), without inductor,
which creates its cache folder on import and fails if it cannot.
"""

from __future__ import annotations

import contextlib
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

if TYPE_CHECKING:
    import torch


import importlib.util
import mmap
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import replace
from typing import IO

_STUB_SECONDS: Final = 60
_CACHE_SETTING: Final = "TORCHINDUCTOR_CACHE_DIR"
_C_STUB: Final = "#include <Python.h>\nint stub(void) { return 0; }\n"
_CPP_STUB: Final = "#include <cmath>\n#include <omp.h>\n" + _C_STUB


@dataclass(frozen=True, slots=True)
class Compiler:
    """The host compiler that torch.compile needs, if any; ``error`` says why it failed."""

    language: str
    command: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """A cache folder as this process would use it; ``setting`` is the variable that changes it.

    ``error`` says why it cannot be written, ``created`` are the folders that the test made,
    innermost first.
    """

    name: str
    setting: str
    path: str | None = None
    error: str | None = None
    is_executable: bool = True
    free_bytes: int = 0
    created: tuple[Path, ...] = ()


def temporary_error() -> str | None:
    try:
        tempfile.gettempdir()
    except OSError as error:
        return error.strerror or str(error)
    return None


def c_compiler() -> Compiler:
    """Return the C compiler that Triton builds its launchers with, after compiling a stub."""
    # As in triton/runtime/build.py, 3.6 to 3.9: CC is used unchecked, and no compiler is bundled.
    command = os.environ.get("CC", shutil.which("gcc") or shutil.which("clang"))
    if command is None:
        return Compiler("C")
    return Compiler("C", command, _stub_error(command, "stub.c", _C_STUB))


def cpp_compiler() -> Compiler:
    """Return the C++ compiler that inductor uses for CPU kernels, after compiling a stub."""
    command = os.environ.get("CXX", "g++")  # as config.cpp.cxx, torch 2.11 to 2.15
    if shutil.which(command) is None:
        return Compiler("C++")
    return Compiler("C++", command, _stub_error(command, "stub.cpp", _CPP_STUB, "-fopenmp"))


def check_cache_folder() -> None:
    """Make inductor's cache folder, as importing inductor does; else a SettingsError."""
    folder = ""
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    try:
        folder = os.environ.get(_CACHE_SETTING) or _default_folder()
        Path(folder).mkdir(parents=True, exist_ok=True)
    except (KeyError, ModuleNotFoundError, OSError) as error:  # a user without a name, no /tmp
        raise SettingsError(
            f"inductor's cache folder {folder} cannot be made: "
            f"{getattr(error, 'strerror', None) or error}",
            f"name a writable folder in the variable {_CACHE_SETTING}",
        ) from error


def cache_folders(*, on_gpu: bool) -> tuple[Folder, ...]:
    """Return inductor's cache folder, and on a GPU Triton's; `remove_created` removes new ones."""
    return (_inductor_folder(), _triton_folder()) if on_gpu else (_inductor_folder(),)


def remove_created(folders: tuple[Folder, ...]) -> None:
    """Remove the empty folders that testing *folders* created: the server may be another user."""
    for folder in folders:
        for part in folder.created:
            with contextlib.suppress(OSError):
                part.rmdir()


def _inductor_folder() -> Folder:
    name, setting = "cache folder", _CACHE_SETTING
    try:
        path = os.environ.get(setting) or _default_folder()
    except (KeyError, ModuleNotFoundError, OSError) as error:  # a user without a name, no /tmp
        return Folder(name, setting, error=str(error.args[-1]))
    return _tested(name, setting, path)


def _default_folder() -> str:
    """Return inductor's default folder without its package, which would create it."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    path = Path(torch.origin).parent / "_inductor" / "runtime" / "cache_dir_utils.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.default_cache_dir())


def _triton_folder() -> Folder:
    setting = "TRITON_CACHE_DIR"  # the default is that of knobs.py, Triton 3.6 to 3.9
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~/")  # noqa: PTH111  never raises
    path = os.environ.get(setting) or str(Path(home, ".triton", "cache"))
    return _tested("Triton folder", setting, path)


def _tested(name: str, setting: str, named: str) -> Folder:
    path = Path(named).absolute()
    created = tuple(part for part in (path, *path.parents) if not os.path.lexists(part))
    folder = Folder(name, setting, str(path), created=created)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            is_executable = _can_load_code(file)
        free = shutil.disk_usage(path).free
    except OSError as error:
        return replace(folder, error=error.strerror or str(error))
    return replace(folder, is_executable=is_executable, free_bytes=free)


def _can_load_code(file: IO[bytes]) -> bool:
    file.write(bytes(mmap.PAGESIZE))
    file.flush()
    try:  # as the loader maps a shared object; fails on a noexec mount
        mmap.mmap(
            file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC
        ).close()
    except OSError:
        return False
    return True


def _stub_error(command: str, name: str, text: str, *flags: str) -> str | None:
    """Compile a stub with what every launcher or kernel needs; return why that failed."""
    scheme = sysconfig.get_default_scheme()
    if scheme == "posix_local":  # as triton/runtime/build.py: Debian's scheme has no headers
        scheme = "posix_prefix"
    include = f"-I{sysconfig.get_path('include', scheme)}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, name)
            source.write_text(text, encoding="ascii")
            library = str(source.with_suffix(".so"))
            done = subprocess.run(  # noqa: S603  the compiler that torch.compile would run
                [command, str(source), "-shared", "-fPIC", include, "-o", library, *flags],
                capture_output=True,
                errors="replace",
                timeout=_STUB_SECONDS,
                check=False,
            )
    except OSError as error:
        return error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return f"did not finish in {_STUB_SECONDS} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.splitlines() or [f"exit status {done.returncode}"]
    return next((line for line in lines if "error" in line), lines[0]).strip()


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
        return Facts(requested=requested, torch=_version("torch"), torch_error=str(error))
    return Facts(
        requested=requested,
        torch=torch.__version__,
        on_gpu=on_gpu,
        cuda=cuda,
        triton=_version("triton"),
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
    return Target(runtime, None, memory, load, _online_tuners())


def _version(distribution: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


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


def _online_tuners() -> tuple[str, ...]:
    import torch
    from torch.cuda import tunable

    tuners = []
    if torch.backends.cudnn.benchmark:
        tuners.append("torch.backends.cudnn.benchmark")
    if tunable.is_enabled() and tunable.tuning_is_enabled():
        tuners.append("TunableOp")
    return tuple(tuners)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
