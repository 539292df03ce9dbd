"""`CompileWatch`: reports when inductor begins and ends to compile a graph, in any thread.

`FrameWatch` reports the frames that dynamo compiles no graph of, or breaks apart, `BenchmarkWatch`
every benchmark that inductor runs, with the site that started it: benchmarker methods call each
other, so only the outermost call of a thread counts. `OnlineTunerWatch` reports what measures real
calls, beside inductor's benchmarker. Also whether compiles began before anything was attached:
such graphs never ask a table.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch._dynamo import convert_frame
from torch._dynamo.utils import get_compilation_metrics, graph_break_reasons
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config
from torch._inductor.runtime import benchmarking, triton_heuristics
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch.autograd import profiler, profiler_legacy
from torch.cuda import tunable

from warmup.core.events import FrameSkipped
from warmup.core.roofline import dtype_name
from warmup.inductor.patches import Function, Hooks, Patches
from warmup.inductor.versions import PLUGINS, Version
from warmup.keys.kind import Linear
from warmup.keys.question import Answers

# Calls that inductor makes a packed linear of, where it may take the weight for a constant.
_LINEARS: Final = frozenset({"addmm", "linear", "matmul", "mm"})

_MATRIX: Final = 2  # dims of a weight; the operands of a product are as many
_OPS: Final = "mm addmm bmm baddbmm mv addmv _scaled_mm convolution mkldnn_rnn_layer _cudnn_rnn"
_MATMULS: Final = frozenset(f"aten::{name}" for name in _OPS.split())
_GRAPH_CALL: Final = "## Call CompiledFxGraph"  # of the profiler (torch/_inductor/output_code.py)
_EXPLANATION: Final = "\n  Explanation: "  # in the text of a graph break
_RESUMED: Final = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")  # what follows a break
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_MAX_REASON: Final = 300


class CompileObserver(Protocol):
    """Receiver of what `CompileWatch` sees, in the thread that compiles."""

    def compile_started(self) -> None:
        """Inductor begins to compile a graph, or to load it from its caches."""

    def compile_ended(self) -> None: ...

    def unfrozen(self, linears: Callable[[], Sequence[Linear]]) -> None:
        """A graph that freezes no weights is compiled; *linears* returns those that it has.

        May raise a MissError: a frozen one has a row, and misses are refused.
        """

    def left_unfrozen(self) -> None:
        """A graph with a linear was compiled with gradients on although its options freeze weights.

        Torch freezes none then (compile_fx.py), and inductor asks nothing about the linear.
        """


class CompileWatch(Hooks):
    """Reports every outermost call of ``compile_fx`` to *observer*."""

    def __init__(self, observer: CompileObserver) -> None:
        self._observer = observer
        self._inside = threading.local()

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(compile_fx_module, "compile_fx", self._compile_and_report)

    def _compile_and_report(
        self, original: Function, model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._active or getattr(self._inside, "value", False):
            return original(model, inputs, *args, **kwargs)
        self._inside.value = True
        try:
            self._observer.compile_started()
            # The option of one torch.compile freezes nothing: dynamo reads that of the process.
            if not inductor_config.freezing:
                self._observer.unfrozen(partial(_linears, model, inputs))
            is_unfrozen = torch.is_grad_enabled() and _would_freeze(model, inputs)
            compiled = original(model, inputs, *args, **kwargs)
            if is_unfrozen:
                self._observer.left_unfrozen()
            return compiled
        finally:
            self._inside.value = False
            self._observer.compile_ended()


def _would_freeze(model: Any, inputs: Any) -> bool:
    if not inductor_config.freezing or not isinstance(model, torch.fx.GraphModule):
        return False
    if not any(isinstance(each, nn.Parameter) for each in (*inputs, *model.parameters())):
        return False
    return any(_name_of(node) in _LINEARS for node in model.graph.nodes)


def _name_of(node: torch.fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target)).partition(".")[0]


def _linears(model: Any, inputs: Iterable[Any]) -> list[Linear]:
    """Return the products of *model* with a matrix that is computed from weights alone."""
    linears, constants, values = list[Linear](), set[torch.fx.Node](), iter(inputs)
    for node in model.graph.nodes if isinstance(model, torch.fx.GraphModule) else ():
        if node.op == "placeholder":
            is_constant = _is_weight(next(values, None))
        else:  # such as a transposed or cast weight
            is_constant = node.op == "get_attr" or bool(node.all_input_nodes)
            is_constant = is_constant and constants.issuperset(node.all_input_nodes)
        if is_constant:
            constants.add(node)
        elif linear := _linear(node, constants):
            linears.append(linear)
    return linears


def _is_weight(value: object) -> bool:
    return isinstance(value, nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def _linear(node: torch.fx.Node, constants: Container[torch.fx.Node]) -> Linear | None:
    name = _name_of(node)
    given = [*node.args, *node.kwargs.values()]
    bias = given.pop(0) if name == "addmm" and given else None
    bias, given = given[2] if name == "linear" and given[2:] else bias, given[:2]
    operands = [each for each in given if isinstance(each, torch.fx.Node)]
    if name not in _LINEARS or len(operands) < _MATRIX or operands[1] not in constants:
        return None
    weight, out = (each.meta.get("example_value") for each in (operands[1], node))
    if not isinstance(weight, torch.Tensor) or not isinstance(out, torch.Tensor):
        return None
    if weight.dim() != _MATRIX or not out.dim() or not weight.numel():
        return None
    n = int(out.shape[-1])
    m, k = out.numel() // n, weight.numel() // n
    # Under autocast the operands are cast, and only the result has the dtype of the product.
    return Linear(m if isinstance(m, int) else None, n, k, dtype_name(out.dtype), bias is not None)


class FrameWatch(Hooks):
    """Reports every frame that dynamo leaves uncompiled, whole or in a part, to *answers*.

    Dynamo raises no error then, and says why in its metrics alone (torch/_dynamo/convert_frame.py).
    A frame that it skips by rule, such as one of torch's own functions, has no metrics.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(convert_frame.ConvertFrame, "__call__", self._convert_and_report)

    def _convert_and_report(
        self, original: Function, converter: Any, frame: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # Dynamo converts one frame at a time (compile_lock): what is new is this frame's.
        earlier, breaks = get_compilation_metrics()[-1:], len(graph_break_reasons)
        converted = original(converter, frame, *args, **kwargs)
        last = get_compilation_metrics()[-1:]
        if not self._active or not last or (earlier and last[0] is earlier[0]):
            return converted
        metrics, place = last[0], place_of(frame.f_code)
        if converted.guarded_code is not None:
            reasons = graph_break_reasons[breaks:]
            found = {_at(place, each.user_stack[-1:]): each.reason for each in reasons}
            for where, reason in found.items():
                self._answers.emit(FrameSkipped(f"a part of {where}", explanation_of(reason)))
        elif metrics.fail_reason:
            self._answers.emit(FrameSkipped(place, explanation_of(metrics.fail_reason)))
        return converted


def place_of(code: Any) -> str:
    """Return the function of *code*; where it is the rest of one behind a break, that is left."""
    resumed = _RESUMED.fullmatch(code.co_name)
    name, line = resumed.groups() if resumed else (code.co_name, code.co_firstlineno)
    return f"{name} ({Path(code.co_filename).name}:{line})"


def _at(place: str, innermost: Sequence[Any]) -> str:
    lines = [f", at {Path(each.filename).name}:{each.lineno}" for each in innermost]
    return "".join((place, *lines))


def explanation_of(reason: str) -> str:
    """Return the sentence that explains dynamo's *reason*, in one line and without addresses."""
    if reason.startswith("generic_jump"):
        return f"a branch depends on a tensor's value ({reason})"
    head, _, tail = reason.partition(_EXPLANATION)
    sentence = (tail or head).partition("\n  Hint: ")[0].partition("\n\n")[0]
    return _ADDRESS.sub("", " ".join(sentence.split()))[:_MAX_REASON].removesuffix(".")


def count_matmuls_outside(call: Callable[[], object]) -> int:
    """Return how many matmuls and convolutions *call*, compiled before, runs outside any graph."""
    # Kineto writes lines of its own to stderr; graphs mark their calls only where the flag is set.
    record: Any = profiler_legacy.profile
    with record() as profiled:
        profiler._set_is_profiler_enabled(enable=True)
        try:
            call()
        finally:
            profiler._set_is_profiler_enabled(enable=False)
    events = [event for event in profiled.function_events if event.name in _MATMULS]
    return sum(not _is_within(event.cpu_parent) for event in events)


def _is_within(event: Any) -> bool:
    while event is not None:
        if event.name.startswith(_GRAPH_CALL) or event.name in _MATMULS:
            return True
        event = event.cpu_parent
    return False


_known_before = 0


def count_earlier_compiles() -> int:
    """Return how many functions dynamo has compiled in this process without a table."""
    return max(0, len(convert_frame.output_codes.seen_ids) - _known_before)


def forget_earlier_compiles() -> None:
    global _known_before  # noqa: PLW0603  dynamo's list is global too
    _known_before = len(convert_frame.output_codes.seen_ids)


def is_compiling_elsewhere() -> bool:
    if not convert_frame.compile_lock.acquire(blocking=False):
        return True
    convert_frame.compile_lock.release()
    return False


try:
    from triton.runtime import autotuner
except ImportError:  # only Linux has Triton
    Autotuner: Any = None
else:
    Autotuner = autotuner.Autotuner

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


class OnlineTunerWatch(Hooks):
    """Reports each tuner of real calls to *report*, as a site, once; it may refuse the compile.

    A plugin of inductor's kernels is left out of the kernels. Cudnn's benchmark mode and TunableOp
    are torch's own, and only whoever switched them on can switch them off.
    """

    def __init__(self, version: Version, report: Callable[[str], None]) -> None:
        self._version, self._report = version, report
        self._reported: set[str] = set()

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(compile_fx_module, "compile_fx", self._compile)
        if self._version.has(PLUGINS):
            patches.hook(triton_heuristics, "get_caching_autotuner_plugins", self._plugins)

    def _compile(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        if self._active:
            self._report_once(online_tuners())
        return original(*args, **kwargs)

    def _plugins(self, original: Function, kernel: Any) -> list[Any]:
        plugins: list[Any] = original(kernel)
        if not self._active:
            return plugins
        self._report_once([f"plugin:{type(each).__name__}" for each in plugins])
        return []

    def _report_once(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._reported:
                self._reported.add(name)
                self._report(name)


def online_tuners() -> list[str]:
    """Return the tuners of torch that are switched on and measure calls of this process's GPU."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        return []
    tuners = ["cudnn.benchmark"] if torch.backends.cudnn.benchmark else []
    if tunable.is_enabled() and tunable.tuning_is_enabled():
        tuners.append("TunableOp")
    return tuners


def _is_of_user(kernel: Any) -> bool:
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
    stack: list[tuple[str, str]] = []
    selection = "unknown"
    while frame is not None:
        file, function = frame.f_code.co_filename.replace("\\", "/"), frame.f_code.co_name
        stack.append((file, function))
        if function == "benchmark_all_configs" and _is_of_user(frame.f_locals.get("self")):
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
