"""`BenchmarkWatch`: reports every benchmark that inductor runs, with the site that started it.

Benchmarker methods call each other, so only the outermost call of a thread counts.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from torch._inductor.runtime import benchmarking
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.select_algorithm import AlgorithmSelectorCache

from warmup.inductor.patches import Function, Hooks, Patches

try:
    from triton.runtime.autotuner import Autotuner
except ImportError:  # only Linux has Triton
    Autotuner = None

_USERS_OWN: Final = "triton.autotune"
# (end of the file name, part of the function name, site). The first rule that matches any frame:
_OUTER_SITES: Final = (
    ("fx_passes/pad_mm.py", "", "pad"),
    ("fx_passes/b2b_gemm.py", "", "b2b_gemm"),
    ("fx_passes/node_runtime_estimation.py", "", "overlap_estimate"),
    ("_functorch/partitioners.py", "", "partitioner"),
    ("kernel/custom_op.py", "", "custom_op"),
    ("codegen/multi_kernel.py", "", "multi_kernel"),
    ("codegen/simd.py", "mix_order", "mix_order_split"),
    ("triton/runtime/autotuner.py", "", _USERS_OWN),
)
# If none matches, the innermost frame that a rule matches:
_INNER_SITES: Final = (
    ("runtime/triton_heuristics.py", "", "launch"),
    ("codegen/triton.py", "", "fusion"),
    ("_inductor/scheduler.py", "", "fusion"),
    ("_inductor/select_algorithm.py", "", "select"),
)
# Files whose frames are no site: they pass a call on to what they wrap.
_PASSING_ON: Final = ("runtime/benchmarking.py", "warmup/inductor/patches.py")
_SELECTION_FRAMES: Final = ("__call__", "do_autotuning", "benchmark")


class BenchmarkWatch(Hooks):
    """Reports every outermost measurement to *report*, which may refuse it, and its end."""

    def __init__(
        self, report: Callable[[str], None], report_end: Callable[[], None] | None = None
    ) -> None:
        self._report = report
        self._report_end = report_end
        self._depth = threading.local()

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        for owner in _benchmarkers():
            for name in [name for name in vars(owner) if name.startswith("benchmark")]:
                if callable(vars(owner)[name]):
                    patches.wrap(owner, name, self._wrap)
        # Candidates timed in a child process do not use this process's benchmarker.
        patches.wrap(AlgorithmSelectorCache, "benchmark_in_sub_process", self._wrap)
        patches.wrap(CachingAutotuner, "bench", self._wrap)
        # A user's @triton.autotune kernel outside compiled graphs.
        if Autotuner is not None:
            patches.wrap(Autotuner, "_bench", self._wrap)

    def _wrap(self, original: Function) -> Callable[..., Any]:
        def measure(*args: Any, **kwargs: Any) -> Any:
            depth = getattr(self._depth, "value", 0)
            is_outermost = self._active and depth == 0
            if is_outermost:
                self._report(_site(sys._getframe(1)))
            self._depth.value = depth + 1
            try:
                return original(*args, **kwargs)
            finally:
                self._depth.value = depth
                if is_outermost and self._report_end is not None:
                    self._report_end()

        return measure


def _is_of_user(kernel: Any) -> bool:
    """Whether *kernel* is a user's @triton.autotune kernel inside a compiled graph."""
    return getattr(kernel, "heuristic_type", None) is HeuristicType.USER_AUTOTUNE


def _benchmarkers() -> list[type]:
    classes: list[type] = []
    pending: list[type] = [benchmarking.Benchmarker]
    while pending:
        owner = pending.pop()
        if owner not in classes:
            classes.append(owner)
            pending.extend(owner.__subclasses__())
    return classes


def _site(frame: FrameType | None) -> str:
    """Return the name of the site that benchmarks; *frame* is the benchmarker's caller."""
    stack: list[tuple[str, str]] = []
    selection = "unknown"
    while frame is not None:
        file, function = frame.f_code.co_filename.replace("\\", "/"), frame.f_code.co_name
        stack.append((file, function))
        if function == "bench" and _is_of_user(frame.f_locals.get("self")):
            return _USERS_OWN
        is_selector = file.endswith("_inductor/select_algorithm.py")
        if is_selector and function in _SELECTION_FRAMES:
            selection = str(frame.f_locals.get("name", selection))
        frame = frame.f_back
    for ending, part, site in _OUTER_SITES:
        if any(file.endswith(ending) and part in function for file, function in stack):
            return site
    for file, function in stack:
        for ending, part, site in _INNER_SITES:
            if file.endswith(ending) and part in function:
                return f"select:{selection}" if site == "select" else site
    callers = (f for f in stack if not f[0].endswith(_PASSING_ON))
    file, function = next(callers, ("unknown", "unknown"))
    return f"{file.rsplit('/', 1)[-1]}:{function}"
