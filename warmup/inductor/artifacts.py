"""Artifacts of one model that do not know of each other: one for each bucket.

torch.compile keeps what it compiled by code object, shares a limit on recompiles among them, and
looks through all of them at each call. A function with a code object of its own has its own.
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
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from warmup.core.errors import ModelError

CompiledEntry = Callable[..., Any]
_SIZE: Final = re.compile(r"L\['\w+'\]\S*\.size\(\)\[\d+\]")  # of an input, as guards name it
_USER_CODE: Final = "from user code:"
_STACK: Final = "User stack:"
_tagging = threading.RLock()


def apart(model: CompiledEntry, name: str) -> CompiledEntry:
    """Return a function that calls *model*, compiled apart from every other one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=name)
    return call


def compile_apart(entry: CompiledEntry, mode: str | None, *, whole: bool) -> CompiledEntry:
    """Return *entry* compiled in *mode*, as one graph when *whole*.

    Marked dims alone are dynamic then. Where the graph breaks, sizes in the parts after a break are
    marked by nobody, and become dynamic when they change.
    """
    if whole:
        return torch.compile(entry, dynamic=False, fullgraph=True, mode=mode)
    return torch.compile(entry, mode=mode)


@contextlib.contextmanager
def caches_of(name: str) -> Iterator[None]:
    """Let what this thread compiles have entries of its own in inductor's caches, by *name*.

    The range of a dim is not in their keys, but in the guards of their entries: an entry for a
    range that overlaps with another is taken, and fails (torch/_inductor/codecache.py). Threads do
    so one by one, since torch 2.11 has one such setting for all of them.
    """
    config: Any = compiler_config  # its functions are made at run time
    with _tagging:
        before = config.cache_key_tag
        tagged = f"{before}+{name}" if before else name
        # Not config.patch: it would leave the tag of this table behind, in front of the next one's.
        restore = config._make_closure_patcher(cache_key_tag=tagged)()
        try:
            yield
        finally:
            restore()


def artifacts_of(entry: CompiledEntry) -> int:
    """Return how many artifacts *entry*, a function that `apart` made, has."""
    return len(_debug_get_cache_entry_list(entry.__code__))


def forget(entry: CompiledEntry) -> None:
    """Drop the artifacts of *entry*, a function that `apart` made: its next call compiles."""
    reset_code(entry.__code__)


def break_in(error: BaseException) -> str | None:
    """Return where and why a graph breaks, None when *error* is another one."""
    if not isinstance(error, Unsupported):
        return None
    return _told(str(error), _USER_CODE)


def range_error(error: BaseException, interval: str) -> ModelError | None:
    """Return what to raise when a dim cannot be dynamic in *interval*; None for another *error*."""
    if not isinstance(error, ConstraintViolationError):
        return None
    told = _SIZE.sub("size", _told(str(error), _STACK))
    return ModelError(
        f"sizes {interval} cannot share one artifact: {told}",
        "end a bucket there (`warmup explain` tells where), or use the policy exact or pad",
    )


def _told(text: str, mark: str) -> str:
    """Return the reason in an error of dynamo, and the place in the model that it names."""
    reason, _, stack = text.partition(mark)
    lines = [line.strip(" -") for line in reason.splitlines() if line.strip()]
    violated = [line for line in lines[1:] if not line.startswith("For more")]
    first = violated[0] if lines[0].startswith("Constraints violated") and violated else lines[0]
    places = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    return f"{first} ({places[-1]})" if places else first
