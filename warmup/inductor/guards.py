"""`Recorder`: a torch.compile backend that records the guards of a model with a dynamic size.

`record` compiles as torch.compile does, up to the source code of the kernels: dynamo, AOTAutograd
with the backward, inductor's passes, lowering, scheduling and code generation all add guards, so
all of them run. Building and launching kernels adds no guards and is left out: graphs run
uncompiled. A `Guard` says at which sizes it holds, an `Artifact` which sizes it serves. Under an
`AssumedGpu` inductor compiles graphs of the CPU for a GPU that this machine need not have.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import types
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import sympy
import torch
import torch._dynamo
import torch._functorch.config as functorch_config
import torch.utils._triton as triton_queries
from torch._dynamo import config as dynamo_config
from torch._dynamo import device_interface
from torch._dynamo.utils import get_compilation_metrics
from torch._guards import CompileContext, TracingContext
from torch._inductor import async_compile, scheduler
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config
from torch._inductor import utils as inductor_utils
from torch._inductor.codecache import CacheBase
from torch._inductor.codegen import triton as triton_codegen
from torch._inductor.fx_passes import joint_graph, pad_mm, post_grad
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel import mm_grouped
from torch._inductor.runtime import hints
from torch._inductor.template_heuristics import triton as template_heuristics
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.experimental.symbolic_shapes import ShapeEnv, uninteresting_files

from warmup.core.device import AssumedDevice
from warmup.core.errors import SettingsError
from warmup.core.text import GIB
from warmup.inductor.internals import ASSUMED_GPU_INTERNALS, check_internals
from warmup.inductor.patches import Function, Patches, unwrapped

_GPU: Final = torch.device("cuda", 0)
_REGISTERS_OF_SM: Final = 65536
_THREADS_OF_WARP: Final = 32
# What inductor calculates from the facts and caches for the process.
_CALCULATED: Final = ("get_device_tflops", "get_gpu_dram_gbps", "get_max_num_sms", "is_big_gpu")
# What else torch caches for the process of the facts; `compile_fx` fills it while they are assumed.
_FILLED: Final[tuple[Any, ...]] = (
    *(CacheBase.get_system, inductor_utils.get_gpu_type),
    *(triton_queries.triton_backend, triton_queries.triton_hash_with_backend),
)
_TRITON_QUERIES: Final = (
    *("has_triton", "has_triton_package", "has_triton_tma", "has_triton_tma_device"),
    *("has_triton_tensor_descriptor_host_tma", "has_triton_stable_tma_api"),
)
# The modules that define or import one of these; all of them are imported before it is replaced.
_IMPORTING: Final = (
    *(triton_queries, async_compile, compile_fx_module, hints, inductor_utils, mm_grouped, pad_mm),
    *(scheduler, template_heuristics, triton_codegen),
)


@dataclass(frozen=True)
class AssumedGpu:
    """Compiles for *device*; a SettingsError without Triton, whose code inductor generates."""

    device: AssumedDevice

    def __post_init__(self) -> None:
        try:
            import triton  # noqa: F401  not called here
        except ImportError as error:
            raise SettingsError(
                f"assuming {self.device.name} needs Triton, which inductor generates code for",
                "pip install triton (on Linux); a GPU is not needed",
            ) from error
        check_internals(ASSUMED_GPU_INTERNALS)

    def attach(self, patches: Patches) -> None:
        name = "_recursive_joint_graph_passes"
        patches.hook(compile_fx_module, name, self._run_passes)

    def compile_inner(self, graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
        """Compile *graph*, which was moved, as inductor's own inner compile does."""
        post_grad.lazy_init()
        with self._reported():
            moved = [_moved(each) for each in inputs]
            return compile_fx_module.compile_fx_inner(graph, moved, **options)

    def _run_passes(self, original: Function, gm: Any, *args: Any, **options: Any) -> Any:
        # The patterns are traced with examples, which need a driver on a GPU.
        joint_graph.lazy_init(options.get("input_device"))
        joint_graph.constant_fold_uniform_value(gm)  # it makes real tensors, of the CPU here
        folded = inductor_config.patch(joint_graph_constant_folding=False)
        with folded, self._reported():
            _move_graph(gm)
            return original(gm, *args, **options)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Let torch and Triton report the assumed device, and forget what torch caches of it."""
        from triton.runtime import driver

        patches, before = Patches(), driver._active
        try:
            self._replace_facts(patches)
            driver.set_active(self._driver())
            _forget_facts()
            yield
        finally:
            driver._active = before
            patches.restore()
            _forget_facts()

    def _replace_facts(self, patches: Patches) -> None:
        device, properties = self.device, self._properties()
        interface = device_interface.CudaInterface

        def report(owner: Any, **facts: Any) -> None:
            for name, value in facts.items():
                patches.wrap(owner, name, _always(_always(value)))

        report(
            torch.cuda,
            is_available=True,
            is_initialized=True,
            device_count=1,
            current_device=0,
            _exchange_device=0,
            _maybe_exchange_device=0,
            _lazy_init=None,
            synchronize=None,
            get_rng_state=torch.empty(0),
            set_rng_state=None,
            get_device_name=device.name,
            get_device_capability=device.capability,
            get_device_properties=properties,
        )
        report(interface.Worker, get_device_properties=properties)
        report(interface, get_compute_capability=device.compute_capability, is_available=True)
        report(torch._utils_internal, max_clock_rate=device.clock_mhz)
        report(fake_tensor, init_gpu_context=None)
        has_tma = device.capability >= (9, 0)  # TMA came with it
        for name in _TRITON_QUERIES:
            for module in _importing(name):
                report(module, **{name: "tma" not in name or has_tma})
        for name in _CALCULATED:
            for module in _importing(name):
                patches.wrap(module, name, unwrapped)
        patches.wrap(hints.DeviceProperties, "create", _always(self._describe_for_inductor()))

    def _properties(self) -> Any:
        device = self.device
        return types.SimpleNamespace(
            name=device.name,
            gcnArchName=device.name,
            major=device.capability[0],
            minor=device.capability[1],
            multi_processor_count=device.sm_count,
            total_memory=device.memory_gib * GIB,
            L2_cache_size=device.l2_bytes,
            regs_per_multiprocessor=_REGISTERS_OF_SM,
            max_threads_per_multi_processor=2048,
            max_threads_per_block=1024,
            warp_size=_THREADS_OF_WARP,
            shared_memory_per_block=48 << 10,  # without opting in
            shared_memory_per_block_optin=device.block_bytes,
            shared_memory_per_multiprocessor=device.sm_bytes,
        )

    def _describe_for_inductor(self) -> Callable[..., Any]:
        properties = {
            **vars(self._properties()),
            "type": "cuda",
            "cc": self.device.compute_capability,
        }

        def create(cls: Any, device: torch.device) -> Any:
            fields = {name: properties.get(name) for name in cls._fields}
            return cls(**{**fields, "index": device.index or 0})

        return create

    def _driver(self) -> Any:
        from triton.backends.compiler import GPUTarget

        target = GPUTarget("cuda", self.device.compute_capability, _THREADS_OF_WARP)
        limits = {
            "max_shared_mem": self.device.block_bytes,
            "multiprocessor_count": self.device.sm_count,
            "max_num_regs": _REGISTERS_OF_SM,
            "warpSize": _THREADS_OF_WARP,
            "sm_clock_rate": 1000 * self.device.clock_mhz,
            "mem_clock_rate": 1000 * self.device.memory_clock_mhz,
            "mem_bus_width": self.device.bus_bits,
        }
        interface = types.SimpleNamespace(current_device=_always(0))
        return types.SimpleNamespace(
            get_current_target=_always(target),
            get_active_torch_device=_always(_GPU),
            get_current_device=_always(0),
            get_device_interface=_always(interface),
            get_device_capability=_always(self.device.capability),
            utils=types.SimpleNamespace(get_device_properties=_always(limits)),
        )


def _forget_facts() -> None:
    for cached in _FILLED:
        cached.cache_clear()


def _importing(name: str) -> list[Any]:
    return [module for module in _IMPORTING if name in vars(module)]


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _move_graph(graph: Any) -> None:
    for node in graph.graph.nodes:
        if "val" in node.meta and node.op != "get_attr":
            node.meta["val"] = torch.utils._pytree.tree_map(_moved, node.meta["val"])
        node.args = torch.fx.node.map_aggregate(node.args, _moved_device)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _moved_device)


def _moved_device(value: Any) -> Any:
    return _GPU if isinstance(value, torch.device) and value.type == "cpu" else value


def _moved(value: Any) -> Any:
    if not isinstance(value, FakeTensor) or value.device.type != "cpu":
        return value
    mode = value.fake_mode
    with in_kernel_invocation_manager(mode):
        return FakeTensor(mode, value, _GPU)


_TORCH_FOLDER: Final = str(Path(torch.__file__).parents[1])
_RELATIONS: Final = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge, sympy.Eq)
_MAX_ARTIFACTS: Final = 64  # of one model; each may be recompiled up to the given limit
_SMALLEST_DYNAMIC: Final = 2  # torch fixes the sizes 0 and 1 (0/1 specialisation)
_NO_END: Final = 2**62  # a guard that holds here holds at every larger size


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of source code and its function; paths inside torch begin with ``torch/``."""

    path: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on a size under which an artifact is valid.

    ``place`` is the line of torch that added it, ``user`` the line of the model being traced then.
    It ``is_linear`` where it holds on a single interval, ``is_default`` as the range that torch
    gives every dynamic size, ``is_fixed`` where it allows a single size.
    """

    expression: str
    holds: Callable[[int], bool]
    is_linear: bool
    place: SourceLine | None
    user: SourceLine | None = None
    is_default: bool = False
    is_fixed: bool = False

    def interval(self, size: int, ceiling: int) -> tuple[int, int | None] | None:
        """Return the ends, if any, of the interval around *size* on which the guard holds.

        The result is None where it holds elsewhere too, such as a guard on multiples of 8. A guard
        that is not linear is evaluated size by size, up to *ceiling*.
        """
        if self.is_linear:
            low = bisect_left(range(size), x=True, key=self.holds)
            if self.holds(_NO_END):
                return low, None
            above = range(size + 1, _NO_END)
            return low, size + bisect_left(above, x=True, key=lambda other: not self.holds(other))
        sizes = [other for other in range(1, ceiling + 1) if other == size or self.holds(other)]
        low, high = sizes[0], sizes[-1]
        if len(sizes) <= high - low:
            return None
        return low, None if high == ceiling else high


@dataclass(frozen=True, slots=True)
class Artifact:
    """A graph compiled at one size, with the guards under which torch reuses it.

    A model with graph breaks has several, by number. ``why`` is dynamo's reason for compiling
    again. ``unbound`` symbolic sizes do not follow from the dim, and are held.
    """

    graph: int
    size: int
    guards: tuple[Guard, ...]
    why: str = ""
    unbound: tuple[str, ...] = ()

    def serves(self, size: int) -> bool:
        return all(guard.holds(size) for guard in self.guards)


@dataclass(frozen=True, slots=True)
class DerivedSize:
    """A size of an input that follows from the varied dim: ``times * dim + plus``."""

    times: int
    plus: int = 0

    def at(self, size: int) -> int:
        return self.times * size + self.plus


@dataclass
class Recorder:
    """A backend of torch.compile that records the guards of each graph; see `record`.

    ``size`` is that of ``dim`` in the next calls, from which the sizes of ``follows`` follow.
    """

    dim: str
    follows: tuple[DerivedSize, ...]
    gpu: AssumedGpu | None = field(default=None, repr=False)
    size: int = 0
    artifacts: list[Artifact] = field(default_factory=list)
    frames: dict[int, SourceLine] = field(default_factory=dict)
    _users: dict[int, tuple[Any, SourceLine]] = field(default_factory=dict)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _compiles: dict[str, int] = field(default_factory=dict)

    def __call__(self, graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile *graph*, record its guards, and return it uncompiled."""
        compile_id = CompileContext.current_compile_id()
        frame = None if compile_id is None else compile_id.frame_id
        number = self._numbers.setdefault(frame, len(self._numbers))
        tracing = TracingContext.get()
        assert tracing.fake_mode is not None
        inner = compile_fx_module.compile_fx_inner if self.gpu is None else self.gpu.compile_inner
        compile_fx_module.compile_fx(graph, list(inputs), inner_compile=inner)
        if compile_id is not None:
            self._compiles[str(compile_id)] = len(self.artifacts)
        self.artifacts.append(self._read(number, tracing.fake_mode.shape_env, inputs))
        run: Callable[..., Any] = graph.forward
        return run

    def add_compile_metrics(self) -> None:
        """Add what dynamo reports only after a call: each graph's function and recompile reason."""
        for metrics in get_compilation_metrics():
            index = self._compiles.pop(str(metrics.compile_id), None)
            if index is None:
                continue
            artifact = self.artifacts[index]
            first_guard, *_ = (metrics.recompile_reason or "").partition("#")
            self.artifacts[index] = replace(artifact, why=" ".join(first_guard.split()))
            self.frames[artifact.graph] = SourceLine(
                metrics.co_filename or "", metrics.co_firstlineno or 0, metrics.co_name or ""
            )

    def record_user_line(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        """Locate a guard as *original* does, and record the line of the model as well."""
        summary = original(*args, **kwargs)
        for frame in reversed(TracingContext.extract_stack()):
            if not frame.filename.startswith(_TORCH_FOLDER + os.sep):
                user = SourceLine(frame.filename, frame.lineno or 0, frame.name)
                self._users[id(summary[0])] = (summary[0], user)
                break
        return summary

    def _read(self, number: int, env: Any, inputs: Sequence[Any]) -> Artifact:
        bound, unbound = self._bind(env)
        guards = [
            self._guard(env, guard.expr, guard.sloc, bound)
            for guard in env.guards
            if guard.expr.free_symbols & bound.keys()
        ]
        for symbol in bound:
            guards += self._range(env, symbol, bound)
            if (sloc := env.replacements_slocs.get(symbol)) is not None:
                equality = sympy.Eq(symbol, env.replacements[symbol])
                fixed = bool(equality.rhs.is_number)
                guards.append(self._guard(env, equality, sloc, bound, is_fixed=fixed))
        if not bound and self._is_fixed_in(inputs):
            guards.append(self._only_this_size())
        return Artifact(number, self.size, tuple(guards), unbound=unbound)

    def _bind(self, env: Any) -> tuple[dict[Any, DerivedSize], tuple[str, ...]]:
        bound: dict[Any, DerivedSize] = {}
        unbound: list[str] = []
        for symbol, value in env.backed_var_to_val.items():
            matching = (each for each in self.follows if each.at(self.size) == value)
            if (derived := next(matching, None)) is not None:
                bound[symbol] = derived
            else:
                unbound.append(next((s.name for s in env.var_to_sources[symbol]), str(symbol)))
        return bound, tuple(unbound)

    def _guard(
        self, env: Any, expression: Any, sloc: Any, bound: dict[Any, DerivedSize], **marks: bool
    ) -> Guard:
        size = sympy.Symbol(self.dim, integer=True, positive=True)
        known = env.backed_var_to_val
        held = {s: known[s] for s in expression.free_symbols if s in known and s not in bound}
        expression = expression.xreplace(held)
        in_dim = expression.xreplace({s: f.times * size + f.plus for s, f in bound.items()})
        location = sloc.framework_loc
        recorded = self._users.get(id(sloc))
        return Guard(
            expression=str(in_dim),
            holds=_evaluator(expression, bound),
            is_linear=_is_linear(in_dim, size),
            place=None if location is None or isinstance(location, str) else _source_line(location),
            user=recorded[1] if recorded else None,
            **marks,
        )

    def _range(self, env: Any, symbol: Any, bound: dict[Any, DerivedSize]) -> Iterator[Guard]:
        """Yield guards for the ends of the symbol's range; a model's guard may have moved them."""
        known, slocs = env.var_to_range[symbol], env.var_to_range_sloc[symbol]
        if known.lower.is_finite:
            guard = self._guard(env, sympy.Ge(symbol, known.lower), slocs.lower, bound)
            if known.lower == _SMALLEST_DYNAMIC and guard.place is None:
                guard = replace(guard, place=_default_range(), user=None, is_default=True)
            yield guard
        if known.upper.is_finite and known.upper != sympy.oo:
            yield self._guard(env, sympy.Le(symbol, known.upper), slocs.upper, bound)

    def _is_fixed_in(self, inputs: Sequence[Any]) -> bool:
        sizes = {follows.at(self.size) for follows in self.follows}
        return any(
            isinstance(each, torch.Tensor)
            and not isinstance(each, torch.nn.Parameter)
            and any(isinstance(size, int) and size in sizes for size in each.shape)
            for each in inputs
        )

    def _only_this_size(self) -> Guard:
        size = self.size
        small = size < _SMALLEST_DYNAMIC
        return Guard(
            expression=f"Eq({self.dim}, {size})",
            holds=lambda other: other == size,
            is_linear=True,
            place=_default_range() if small else None,
            is_default=small,
            is_fixed=True,
        )


@contextlib.contextmanager
def record(recorder: Recorder, recompiles: int) -> Iterator[None]:
    """Compile graphs without building kernels while the context is open; *recorder* sees each.

    Each function may be recompiled *recompiles* times. Caches are off, and dynamo is reset before
    and after.
    """
    patches = Patches()
    patches.wrap(GraphLowering, "compile_to_module", lambda _: _generate)
    patches.hook(ShapeEnv, "_get_stack_summary", recorder.record_user_line)
    # Under a table the sizes' hints are compared; here the guards of torch itself are wanted.
    patches.wrap(pad_mm, "is_mm_compute_bound", unwrapped)
    if recorder.gpu is not None:
        recorder.gpu.attach(patches)
    own = {__file__, inspect.getfile(Patches)} - uninteresting_files()
    uninteresting_files().update(own)  # else guards are attributed to `record_user_line`
    torch._dynamo.reset()
    try:
        with (
            functorch_config.patch(
                enable_autograd_cache=False, force_non_lazy_backward_lowering=True
            ),
            inductor_config.patch(fx_graph_cache=False, compile_threads=1),
            dynamo_config.patch(
                recompile_limit=recompiles, accumulated_recompile_limit=_MAX_ARTIFACTS * recompiles
            ),
        ):
            yield
    finally:
        patches.restore()
        uninteresting_files().difference_update(own)
        torch._dynamo.reset()


def mark_unless_fixed(tensor: torch.Tensor, dim: int) -> None:
    """Make the dim dynamic in later compiles, unless torch fixes it: mark_dynamic raises."""
    torch._dynamo.maybe_mark_dynamic(tensor, dim)


def _generate(graph: Any) -> Any:
    graph.codegen()
    return types.SimpleNamespace(call=_refuse, runner=None)


def _refuse(*_: Any) -> Any:
    raise AssertionError("a graph compiled for its guards was called")


def _evaluator(expression: Any, bound: dict[Any, DerivedSize]) -> Callable[[int], bool]:
    @functools.cache  # a guard that is not linear is evaluated size by size, several times
    def holds(size: int) -> bool:
        values = {symbol: sympy.Integer(each.at(size)) for symbol, each in bound.items()}
        try:
            return bool(expression.xreplace(values) != sympy.false)
        except ZeroDivisionError:  # the guard is undefined at this size
            return False

    return holds


def _is_linear(relation: Any, size: Any) -> bool:
    if relation in (sympy.true, sympy.false):
        return True
    if not isinstance(relation, _RELATIONS):
        return False
    difference = relation.lhs - relation.rhs
    return bool(difference.is_polynomial(size)) and sympy.degree(difference, size) <= 1


def _source_line(frame: Any) -> SourceLine:
    path = frame.filename
    if path.startswith(_TORCH_FOLDER + os.sep):
        path = os.path.relpath(path, _TORCH_FOLDER)
    return SourceLine(path, frame.lineno or 0, frame.name)


def _default_range() -> SourceLine:
    source = ShapeEnv._default_value_range
    path = os.path.relpath(inspect.getsourcefile(source) or "", _TORCH_FOLDER)
    return SourceLine(path, inspect.getsourcelines(source)[1], source.__name__)
