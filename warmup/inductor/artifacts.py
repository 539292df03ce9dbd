"""`with_own_code` and `compile_entry`: one model compiled several times, once per bucket.

torch.compile stores artifacts by code object: all artifacts of a code object share its recompile
limit, and every call checks their guards in turn. A function with a code object of its own has its
own artifacts and its own limit.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.compiler.config as compiler_config
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from warmup.core.errors import ModelError

CompiledEntry = Callable[..., Any]
_SIZE: Final = re.compile(
    r"L\['\w+'\]\S*\.size\(\)\[\d+\]"
)  # an input's size in the text of a guard
_USER_CODE: Final = "from user code:"
_STACK: Final = "User stack:"
_tagging = threading.RLock()


def with_own_code(model: CompiledEntry, name: str) -> CompiledEntry:
    """Return a function that calls *model* and has a code object of its own, named *name*."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=name)
    return call


def compile_entry(entry: CompiledEntry, mode: str | None, *, whole: bool) -> CompiledEntry:
    """Return *entry* compiled in *mode*; with *whole*, as a single graph.

    With *whole*, only marked dims are dynamic. Otherwise sizes after a graph break, which cannot be
    marked, become dynamic when they change.
    """
    if whole:
        return torch.compile(entry, dynamic=False, fullgraph=True, mode=mode)
    return torch.compile(entry, mode=mode)


@contextlib.contextmanager
def own_cache_entries(name: str) -> Iterator[None]:
    """Add *name* to the keys of inductor's caches for this thread while the context is open.

    The range of a dim is in the guards of a cache entry, not in its key: the entry of an
    overlapping range is loaded and then fails (torch/_inductor/codecache.py). Threads take turns,
    since the setting is process-wide in torch 2.11.
    """
    config: Any = compiler_config  # its functions are generated at run time
    with _tagging:
        before = config.cache_key_tag
        tagged = f"{before}+{name}" if before else name
        # config.patch would leave this table's tag behind, and the next table would append to it.
        restore = config._make_closure_patcher(cache_key_tag=tagged)()
        try:
            yield
        finally:
            restore()


def count_artifacts(entry: CompiledEntry) -> int:
    """Return the number of artifacts of *entry*, a function from `with_own_code`."""
    return len(_debug_get_cache_entry_list(entry.__code__))


def drop_artifacts(entry: CompiledEntry) -> None:
    """Drop the artifacts of *entry*, a function from `with_own_code`: its next call compiles."""
    reset_code(entry.__code__)


def count_graphs() -> int:
    """Return how many graphs torch.compile has made in this process."""
    return int(counters["stats"]["unique_graphs"])


def graph_break_reason(error: BaseException) -> str | None:
    """Return where and why a graph breaks; None if *error* is not about a graph break."""
    if not isinstance(error, Unsupported):
        return None
    return _first_reason(str(error), _USER_CODE)


def range_error(error: BaseException, interval: str) -> ModelError | None:
    """Return the error for a dim that cannot be dynamic in *interval*; None for other errors."""
    if not isinstance(error, ConstraintViolationError):
        return None
    reason = _SIZE.sub("size", _first_reason(str(error), _STACK))
    return ModelError(
        f"sizes {interval} cannot share one artifact: {reason}",
        "end a bucket there (`warmup explain` tells where), or use the policy exact or pad",
    )


def _first_reason(text: str, stack_mark: str) -> str:
    """Return the reason in the text of dynamo's error, with the innermost line of the model."""
    reason, _, stack = text.partition(stack_mark)
    lines = [line.strip(" -") for line in reason.splitlines() if line.strip()]
    violated = [line for line in lines[1:] if not line.startswith("For more")]
    first = violated[0] if lines[0].startswith("Constraints violated") and violated else lines[0]
    frames = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    return f"{first} ({frames[-1]})" if frames else first
