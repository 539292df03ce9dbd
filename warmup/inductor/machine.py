"""`describe_runtime`: the device and the versions of this machine as a `Runtime`."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler

from warmup.core.device import Device, Runtime
from warmup.core.errors import SettingsError
from warmup.core.events import logger
from warmup.core.text import GIB
from warmup.inductor.host_facts import version_of
from warmup.inductor.internals import ASSEMBLER_INTERNALS, WORKER_INTERNALS, check_internals
from warmup.inductor.versions import version_for

_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def resolve_device(wanted: str) -> torch.device:
    """Return the device for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; else a SettingsError."""
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
        return Runtime(device=_cpu(), torch=str(torch.__version__), triton=version_of("triton"))
    return Runtime(
        device=_gpu(device),
        torch=str(torch.__version__),
        triton=version_of("triton"),
        cuda=torch.version.cuda or torch.version.hip,
        driver=_driver(),
        cublas=version_of("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
    )


def check_compiler(device: torch.device) -> None:
    """Raise a SettingsError where *device* is a CPU and inductor finds no C++ compiler."""
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


def _driver() -> str | None:
    try:
        match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", _DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        return None
    return match[1] if match else None


# Inductor's compile workers, started early.

_PTXAS: Final = "TRITON_PTXAS_PATH"
_NICENESS: Final = 10


_HEURISTICS_LOGGER = "torch._inductor.runtime.triton_heuristics"


def start_workers(device: str, *, for_build: bool = False) -> None:
    """Start inductor's compile workers when *device* (``auto``, ``cpu``, ``cuda[:N]``) is a GPU.

    Those of a build live as long as the build: torch ends idle workers after a minute, and new ones
    load their compiler again. From then on Triton uses the workers' assembler in this process too
    (`assemble_as_workers_do`).
    """
    version_for(torch.__version__)
    if device == "cpu" or not torch.cuda.is_available():
        return
    check_internals(WORKER_INTERNALS)
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile, maybe_warm_pool

    with config.patch(quiesce_async_compile_pool=not for_build):
        maybe_warm_pool()
    if for_build:
        _rank_below_measurements(AsyncCompile)
    submit_ready_job: Any = AsyncCompile.use_process_pool
    submit_ready_job()
    assemble_as_workers_do()


def warm_workers(device: torch.device) -> None:
    """Let each worker compile a kernel for *device*, if that is a GPU, without waiting for any.

    The first kernel of a worker takes seconds more, in which its compiler is loaded. A pool that
    has ended is only logged.
    """
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads

    threads = get_compile_threads()
    if device.type != "cuda" or torch.version.hip is not None or threads == 1:
        return
    major, minor = torch.cuda.get_device_capability(device)
    pool: Any = AsyncCompile.process_pool()
    try:
        for _ in range(threads):
            pool.submit(compile_first_kernel, 10 * major + minor)
    except RuntimeError as error:
        logger.warning("compile workers are not warmed: %s", error)


def compile_first_kernel(arch: int) -> None:
    """Compile a kernel for a GPU of *arch*, such as 90, in a worker; a failure has no effect."""
    with contextlib.suppress(Exception):  # a compiler may raise anything; the next kernel says it
        import triton
        import triton.language as tl
        from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        _set_triton_ptxas_path()  # its version, a part of cache keys, is read once in a process

        @triton.jit  # type: ignore[untyped-decorator]  # untyped in triton
        def copy(source, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803  Triton's form
            index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + index, tl.load(source + index))

        types = {"source": "*fp32", "out": "*fp32", "BLOCK": "constexpr"}
        os.environ["TRITON_ALWAYS_COMPILE"] = "1"  # a cached kernel would load no compiler
        try:
            triton.compile(ASTSource(copy, types, {(2,): 128}), target=GPUTarget("cuda", arch, 32))
        finally:
            del os.environ["TRITON_ALWAYS_COMPILE"]


def compile_into_cache(
    name: str, path: str, config: Mapping[str, Any], environment: Mapping[str, str]
) -> None:
    """Compile the kernel *name* in the file *path* with one *config* into Triton's cache."""
    # A failure leaves nothing: the parent compiles again and finds out why. *environment* has the
    # folders of the caches, which may change while the worker lives.
    os.environ.update(environment)
    from torch._inductor.runtime.compile_tasks import _reload_python_module, _set_triton_ptxas_path
    from torch._inductor.runtime.triton_heuristics import config_from_dict

    _set_triton_ptxas_path()
    logging.getLogger(_HEURISTICS_LOGGER).setLevel(logging.CRITICAL)  # the parent has the reason
    # A worker's own kernel may be compiled already, and sent away without its function.
    module = _reload_python_module(Path(path).stem, path, set_sys_modules=False)
    kernel: Any = getattr(module, name)
    kernel.configs = [config_from_dict(dict(config))]
    with contextlib.suppress(Exception):  # a compiler may raise anything; the parent sees it again
        kernel.precompile(warm_cache_only=True)


def _rank_below_measurements(compiler: Any) -> None:
    """Give the workers a lower priority: they compile while this process or its child measures."""
    # They are forked by the process that the pool starts, after its first job, and inherit its
    # priority.
    process = getattr(compiler.process_pool(), "process", None)
    if process is not None:
        with contextlib.suppress(OSError):  # it ended; the first job says so
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)


def assemble_as_workers_do() -> None:
    """Make Triton in this process use the same ptxas as inductor's workers.

    torch may bundle a newer ptxas than Triton, which its workers use
    (torch/_inductor/runtime/compile_tasks.py). A candidate loaded by other code would be assembled
    unlike the kernel that is served. The version of ptxas is part of the keys of Triton's cache, so
    a bundle's kernels are found only if it is the same from the first kernel on: what has cached
    another version is cleared.
    """
    from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

    _set_triton_ptxas_path()
    if _PTXAS in os.environ and torch.version.cuda is not None:
        check_internals(ASSEMBLER_INTERNALS)
        from torch.utils._triton import triton_hash_with_backend
        from triton.backends.nvidia.compiler import CUDABackend, get_ptxas_version

        for cached in (get_ptxas_version, CUDABackend.hash, triton_hash_with_backend):
            cached.cache_clear()
