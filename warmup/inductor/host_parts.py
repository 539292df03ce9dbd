"""`HostParts`: what the host does in a call of a compiled function, timed in the call itself.

Inductor's generated module allocates the outputs and launches the kernels by names among its
globals; while the parts are timed, these names stand for functions that time the original ones.
The guards of a function are checked on the arguments of a call, as dynamo checks them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._inductor import config as inductor_config
from torch._inductor.codecache import PyCodeCache

_US_PER_NS: Final = 1e-3
_ALLOCATORS: Final = ("empty_strided_cuda", "empty_strided_cpu")
_EXTERN_KERNELS: Final = "extern_kernels"
_TORCH, _OPERATORS = "torch", "ops"
_TRITON_KERNELS, _CPP_KERNELS = "triton_", "cpp_"


@dataclass
class HostParts:
    """Microseconds since the parts are timed: of allocations, and of launches.

    On a CPU a launch runs the kernel. An operator of torch, such as that for packed weights,
    allocates its output itself: all of it is a launch.
    """

    allocation_us: float = 0.0
    launch_us: float = 0.0


@dataclass(frozen=True)
class CompiledFunction:
    """A compiled function: its uncompiled *entry*, the locals of a call, and generated modules.

    The modules are there once the function was compiled inside `recording`.
    """

    entry: Callable[..., Any]
    frame: Mapping[str, Any]
    modules: list[ModuleType] = field(default_factory=list)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the modules that inductor generates in this context."""
        before = len(PyCodeCache.modules)
        yield
        self.modules.extend(each for each in PyCodeCache.modules[before:] if hasattr(each, "call"))

    def guards_us(self, calls: int) -> float | None:
        """Return the microseconds of one check of the guards, a mean of *calls*.

        None where they do not hold for the frame, or the function has several graphs.
        """
        code: Any = self.entry.__code__
        entries = _debug_get_cache_entry_list(code)
        frame = dict(self.frame)
        if len(entries) != 1 or not entries[0].guard_manager.check(frame):
            return None
        check = entries[0].guard_manager.check
        start = time.perf_counter_ns()
        for _ in range(calls):
            check(frame)
        return (time.perf_counter_ns() - start) * _US_PER_NS / calls

    @contextlib.contextmanager
    def timing_parts(self) -> Iterator[HostParts]:
        """Time allocations and launches while the context is open."""
        parts = HostParts()
        before = [(vars(module), dict(vars(module))) for module in self.modules]
        for names, _ in before:
            names.update({name: _timed(name, value, parts) for name, value in names.items()})
        try:
            yield parts
        finally:
            for names, originals in before:
                names.update(originals)


@contextlib.contextmanager
def freezing_weights() -> Iterator[None]:
    """Make constants of the weights of what is compiled in the context, under ``no_grad``."""
    with inductor_config.patch(freezing=True):
        yield


class _TimedAttributes:
    """An object whose attributes are timed as launches when they are called."""

    def __init__(self, value: Any, parts: HostParts) -> None:
        self._value, self._parts = value, parts

    def __getattr__(self, name: str) -> Any:
        return _timed_launch(getattr(self._value, name), self._parts)


class _TimedOperators:
    """A namespace of ``torch.ops``, or an operator in it, which is timed when it is called."""

    def __init__(self, value: Any, parts: HostParts) -> None:
        self._value, self._parts = value, parts

    def __getattr__(self, name: str) -> Any:
        return _TimedOperators(getattr(self._value, name), self._parts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _timed_launch(self._value, self._parts)(*args, **kwargs)


class _TimedTorch:
    """``torch`` with operators that are timed."""

    def __init__(self, value: Any, parts: HostParts) -> None:
        self._value = value
        self.ops = _TimedOperators(getattr(value, _OPERATORS), parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._value, name)


def _timed(name: str, value: Any, parts: HostParts) -> Any:
    """Return the global *value* called *name*, timed where it allocates or launches."""
    if name == _TORCH:
        return _TimedTorch(value, parts)
    if name in _ALLOCATORS:
        return _timed_allocation(value, parts)
    if name == _EXTERN_KERNELS or (name.startswith(_TRITON_KERNELS) and hasattr(value, "run")):
        return _TimedAttributes(value, parts)
    if name.startswith(_CPP_KERNELS) and callable(value):
        return _timed_launch(value, parts)
    return value


def _timed_allocation(function: Callable[..., Any], parts: HostParts) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            parts.allocation_us += (time.perf_counter_ns() - start) * _US_PER_NS

    return call


def _timed_launch(function: Callable[..., Any], parts: HostParts) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            parts.launch_us += (time.perf_counter_ns() - start) * _US_PER_NS

    return call
