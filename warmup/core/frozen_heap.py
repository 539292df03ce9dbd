"""`frozen_heap`: garbage collections look at a compile's own objects while it is under way.

Tracing and lowering make so many objects that full collections run, and each looks through all that
torch and the model have made: a fifth of the processor time of a start with shared layers (torch
2.11, one core). `gc.freeze` takes those objects out of its sight, and `gc.unfreeze` puts them back.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_freezing = threading.Lock()
_contexts = 0  # contexts, in all threads


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Leave what exists now out of garbage collections while the context is open.

    Objects that a caller has frozen before stay frozen; then nothing is changed here. What another
    thread freezes meanwhile is seen again with the rest.
    """
    global _contexts  # noqa: PLW0603  the collector is the process's too
    with _freezing:
        is_ours = _contexts > 0 or gc.get_freeze_count() == 0
        if is_ours and _contexts == 0:
            gc.freeze()
        _contexts += is_ours
    try:
        yield
    finally:
        with _freezing:
            _contexts -= is_ours
            if is_ours and _contexts == 0:
                gc.unfreeze()
