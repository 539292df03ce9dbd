"""`empty_caches`: compiles as a new process does; `kept_kernels` keeps what Triton compiled.

What inductor decides and what it measures must not come from an earlier compile. A kernel may:
Triton's files are named by its source, options, target and version, so that they are what would be
compiled again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

import torch
import torch._dynamo
from torch._inductor.utils import fresh_cache

_TRITON_FOLDER: Final = "TRITON_CACHE_DIR"
_kept: Final = ContextVar[str | None]("kept", default=None)  # Triton's folder in `kept_kernels`


@contextlib.contextmanager
def empty_caches(folder: str | None = None) -> Iterator[None]:
    """Use empty compile caches, in memory and on disk, while the context is open.

    The caches on disk are in a new folder inside *folder*, which is removed afterwards. Triton's is
    that of `kept_kernels`, where this thread has it open.
    """
    torch._dynamo.reset()
    with fresh_cache(dir=folder):
        if (kept := _kept.get()) is not None:
            os.environ[_TRITON_FOLDER] = kept  # `fresh_cache` has set it, and restores it
        yield
    torch._dynamo.reset()


@contextlib.contextmanager
def kept_kernels() -> Iterator[None]:
    """Let each `empty_caches` find the kernels compiled since this context was opened.

    Graphs, generated code and tuned configs are not among them. The folder is removed afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="warmup-kernels-") as folder:
        token = _kept.set(folder)
        try:
            yield
        finally:
            _kept.reset(token)
