"""Inductor's compile workers, started early.

A worker imports torch, which takes seconds; started early, it does so while this process imports.
Until the workers are ready, inductor compiles kernels in this process, one after the other
(torch/_inductor/async_compile.py, use_process_pool).
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

import torch

from warmup.inductor.internals import ASSEMBLER_INTERNALS, WORKER_INTERNALS, check_internals
from warmup.inductor.versions import check_supported

_PTXAS: Final = "TRITON_PTXAS_PATH"
_NICENESS: Final = 10


def start_workers(device: str, *, for_build: bool = False) -> None:
    """Start inductor's compile workers when *device* (``auto``, ``cpu``, ``cuda[:N]``) is a GPU.

    With *for_build* they have a lower priority than what measures beside them.

    From then on Triton uses the workers' assembler in this process too (`assemble_as_workers_do`).

    Raises:
        UnsupportedTorchError: the installed torch is outside the supported range.
        InductorChangedError: an internal is gone or has another signature.
    """
    check_supported(torch.__version__)
    if device == "cpu" or not torch.cuda.is_available():
        return
    check_internals(WORKER_INTERNALS)
    from torch._inductor.async_compile import AsyncCompile, maybe_warm_pool

    maybe_warm_pool()
    if for_build:
        _rank_below_measurements(AsyncCompile)
    submit_ready_job: Any = AsyncCompile.use_process_pool
    submit_ready_job()
    assemble_as_workers_do()


def _rank_below_measurements(compiler: Any) -> None:
    """Give the workers a lower priority: they compile while this process or its child measures.

    Workers are forked by the process that the pool starts, after its first job, and inherit its
    priority. A pool that forks its workers in another way has none.
    """
    process = getattr(compiler.process_pool(), "process", None)
    if process is not None:
        with contextlib.suppress(OSError):  # it ended; the first job says so
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)


def assemble_as_workers_do() -> None:
    """Make Triton in this process use the same ptxas as inductor's workers.

    torch may bundle a newer ptxas than Triton, and inductor uses torch's in its workers and when it
    compiles without workers (torch/_inductor/runtime/compile_tasks.py). A candidate that is loaded
    by other code would be assembled again by Triton's ptxas, unlike the kernel that is served.

    The version of ptxas is part of the keys of Triton's cache, also by way of the source that
    inductor generates. A bundle's kernels are found only if ptxas is the same from the first kernel
    on, so functions that have cached the version of another ptxas are cleared.

    Raises:
        InductorChangedError: an internal is gone.
    """
    from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

    _set_triton_ptxas_path()
    if _PTXAS in os.environ and torch.version.cuda is not None:
        check_internals(ASSEMBLER_INTERNALS)
        from torch.utils._triton import triton_hash_with_backend
        from triton.backends.nvidia.compiler import CUDABackend, get_ptxas_version

        for cached in (get_ptxas_version, CUDABackend.hash, triton_hash_with_backend):
            cached.cache_clear()
