"""Inductor's compile workers, started before the rest of inductor is imported.

A worker process imports torch as this one does, which takes seconds; started first, it does so
meanwhile. Until the workers are there, inductor compiles kernels here, one after the other
(torch/_inductor/async_compile.py, use_process_pool).
"""

from __future__ import annotations

from typing import Any

import torch

from warmup.inductor.internals import WORKER_INTERNALS, check_internals
from warmup.inductor.versions import check_supported


def start_workers(device: str) -> None:
    """Start inductor's compile workers when *device* (``auto``, ``cpu``, ``cuda[:N]``) is a GPU.

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
