"""Inductor's compile workers: started first, imitated, and given many kernels at once.

A worker process imports torch as this one does, which takes seconds; started first, it does so
meanwhile. Until the workers are there, inductor compiles kernels here, one after the other
(torch/_inductor/async_compile.py, use_process_pool).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from warmup.inductor.internals import ASSEMBLER_INTERNALS, WORKER_INTERNALS, check_internals
from warmup.inductor.patches import Patches
from warmup.inductor.versions import check_supported

_PTXAS: Final = "TRITON_PTXAS_PATH"


class HandedOverError(Exception):
    """A graph's kernels are with the workers, nobody waits for them, and it is not compiled."""


def start_workers(device: str) -> None:
    """Start inductor's compile workers when *device* (``auto``, ``cpu``, ``cuda[:N]``) is a GPU.

    Triton assembles in this process as it does in them from now on (`assemble_as_workers_do`).

    Raises:
        UnsupportedTorchError: this torch is outside the supported range.
        InductorChangedError: an internal is gone or has another signature.
    """
    check_supported(torch.__version__)
    if device == "cpu" or not torch.cuda.is_available():
        return
    check_internals(WORKER_INTERNALS)
    from torch._inductor.async_compile import AsyncCompile, maybe_warm_pool

    maybe_warm_pool()
    submit_ready_job: Any = AsyncCompile.use_process_pool
    submit_ready_job()
    assemble_as_workers_do()


def assemble_as_workers_do() -> None:
    """Let Triton assemble here with the ptxas that inductor's workers use.

    torch may bring a newer one than Triton's own, and inductor takes that one in its workers and
    where it compiles without them (torch/_inductor/runtime/compile_tasks.py). A candidate that is
    loaded in another way would be assembled by Triton's: once more, and not as it will be served.

    The assembler's version is in the keys of Triton's cache, and in the source that inductor
    generates, which is in them too. So a bundle's kernels are found where it is the same one from
    the first kernel on, and what this process remembers of another is forgotten.

    Raises:
        InductorChangedError: an internal is gone.
    """
    from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

    _set_triton_ptxas_path()
    if _PTXAS in os.environ and torch.version.cuda is not None:
        check_internals(ASSEMBLER_INTERNALS)
        from torch.utils._triton import triton_hash_with_backend
        from triton.backends.nvidia.compiler import CUDABackend, get_ptxas_version

        for remembering in (get_ptxas_version, CUDABackend.hash, triton_hash_with_backend):
            remembering.cache_clear()


@contextlib.contextmanager
def handing_over() -> Iterator[None]:
    """Let compiling end as soon as a graph's kernels are with the workers, while this is open.

    It ends in a `HandedOverError`, which torch wraps in its own. The workers leave what they made
    in Triton's cache, and inductor keeps their answers by source code (async_compile.py,
    CompiledTritonKernels), so that compiling the same graph again waits for them alone. Without
    workers the kernels are compiled before the error.
    """
    from torch._inductor.async_compile import AsyncCompile

    def leave(wait: Callable[..., None]) -> Callable[..., None]:
        def hand_over(self: Any, _scope: dict[str, Any]) -> None:
            wait(self, {})
            raise HandedOverError

        return hand_over

    patches = Patches()
    patches.wrap(AsyncCompile, "wait", leave)
    try:
        yield
    finally:
        patches.restore()
