"""`Inductor`: the adapter to the installed torch, and `Attachment`: the hooks while in place.

While attached, inductor's decisions are answered by `Answers`; detaching restores inductor.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pkgutil
import platform
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch._dynamo
from torch._dynamo.utils import ChromiumEventLogger
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config, cpu_vec_isa
from torch._inductor.exc import InvalidCxxCompiler

from warmup.core.device import Runtime
from warmup.core.errors import SettingsError
from warmup.core.events import Benchmarked
from warmup.core.phases import Phase, PhaseClock
from warmup.inductor.compile_watch import BenchmarkWatch, OnlineTunerWatch
from warmup.inductor.internals import INTERNALS, check_internals
from warmup.inductor.patches import Firewall, Function, Hooks, KindHooks, Patches
from warmup.inductor.versions import Version, version_for
from warmup.keys.question import Answers
from warmup.keys.registry import KINDS

if TYPE_CHECKING:
    from warmup.inductor.compile_watch import CompileObserver


_attach_lock = threading.Lock()
_attached: list[Attachment] = []


@dataclass(frozen=True, slots=True)
class Inductor:
    """The installed torch, whose internals were checked; made by `warmup.inductor.connect`."""

    version: Version

    @classmethod
    def of_installed_torch(cls) -> Inductor:
        version = version_for(torch.__version__)
        check_internals((*INTERNALS, *version.internals))
        return cls(version)

    def runtime(self, device: str) -> Runtime:
        from warmup.inductor.machine import describe_runtime, resolve_device

        return describe_runtime(resolve_device(device))

    def quiet_switches(self) -> dict[str, bool | int | str]:
        """Return the inductor options that switch off every benchmark that rows do not replace."""
        from warmup.inductor.options import quiet_switches

        return quiet_switches()

    def invariant_options(self) -> dict[str, bool | int]:
        from warmup.inductor.options import invariant_options

        return invariant_options()

    def template_sources(self) -> dict[str, str]:
        from warmup.inductor.gemm.search import template_sources

        return template_sources()

    def earlier_compiles(self) -> tuple[int, bool]:
        """Return how many functions were compiled without a table, and if a thread compiles now."""
        from warmup.inductor.compile_watch import count_earlier_compiles, is_compiling_elsewhere

        return count_earlier_compiles(), is_compiling_elsewhere()

    @contextlib.contextmanager
    def count_benchmarks(self) -> Iterator[Counter[str]]:
        """Count inductor's benchmarks by site, in every thread, while the context is open."""
        sites = Counter[str]()

        def count(site: str) -> None:
            sites[site] += 1

        with Patches() as patches:
            BenchmarkWatch(count).attach(patches)
            yield sites

    @contextlib.contextmanager
    def time_phases(self, clock: PhaseClock) -> Iterator[None]:
        """Let torch's own timers of this thread drive *clock* while the context is open."""
        with Patches(Firewall.current()) as patches:
            PhaseTimers(clock).attach(patches)
            yield

    def attach(
        self,
        answers: Answers,
        options: Mapping[str, Any],
        cache_tag: str,
        *,
        observer: CompileObserver | None = None,
        quiet: bool = False,
        ahead: bool = False,
    ) -> Attachment:
        """Let *answers* decide in every thread until the returned attachment is detached.

        Until then every compile runs under *options*, *cache_tag* is part of inductor's cache keys
        and of every compiled graph, and *observer* is told of each compile. *quiet* drops
        inductor's log messages about candidates. With *ahead* all candidates of a graph
        are compiled at once, beside the measurements of *answers*; otherwise those of a question
        when inductor asks it. Raises SettingsError where a table is attached already, or tables may
        not set one of *options*.
        """
        # Where an internal has changed an import fails, which the check says better.
        from warmup.inductor.cached_graphs import CachedGraphs
        from warmup.inductor.compile_watch import CompileWatch, FrameWatch
        from warmup.inductor.options import CompileOptions, check_options, silence_autotuning

        check_options(options)
        with _attach_lock:
            if _attached:
                raise SettingsError("a table is installed already", "close() its handle first")
            firewall = Firewall.attached = Firewall(answers)
            patches = Patches(firewall)
            patches.on_restore(_detach_firewall)
            try:
                if observer is not None:  # first, so that the options are applied when it looks
                    CompileWatch(observer).attach(patches)
                quiet_options = silence_autotuning(patches) if quiet else {}
                compile_options = CompileOptions({**options, **quiet_options}, answers)
                compile_options.attach(patches)
                compile_options.tag_caches(cache_tag, patches, self.version)
                if options.get("freezing") and observer is not None:  # a build restores its weights
                    from warmup.inductor.weight_watch import WeightWatch

                    WeightWatch(answers).attach(patches)
                graphs = CachedGraphs(self.version, answers, cache_tag)
                graphs.attach(patches)
                counting: Answers = graphs
                firewall.answers = graphs
                if ahead:
                    from warmup.inductor.launch.compiling import KernelsAhead, SilentAnswers

                    KernelsAhead().attach(patches)
                    counting = SilentAnswers(counting)
                for kind in KINDS.values():
                    if kind.hooks is not None:
                        hooks: type[KindHooks] = pkgutil.resolve_name(kind.hooks)
                        hooks(self.version, counting).attach(patches)
                for watch in (BenchmarkWatch, functools.partial(OnlineTunerWatch, self.version)):
                    watch(lambda site: answers.emit(Benchmarked(site))).attach(patches)
                FrameWatch(answers).attach(patches)
                list_one_isa(patches)
            except BaseException:
                patches.restore()
                raise
            attachment = Attachment(patches)
            _attached.append(attachment)
            return attachment


@dataclass(slots=True)
class Attachment:
    """The hooks in place; `detach` restores inductor."""

    _patches: Patches

    def detach(self) -> None:
        from warmup.inductor.compile_watch import forget_earlier_compiles

        with _attach_lock:
            self._patches.restore()
            if self in _attached:
                _attached.remove(self)
                forget_earlier_compiles()


def _detach_firewall() -> None:
    Firewall.attached = None


def compile_model(model: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
    """Return *model* compiled in *mode*; only marked dims are dynamic."""
    return torch.compile(model, dynamic=False, mode=mode)


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that torch.compile wrapped in *module*; any other module as it is."""
    if isinstance(module, torch._dynamo.eval_frame.OptimizedModule):
        return module._orig_mod
    return module


def mark_static(tensor: torch.Tensor) -> None:
    """Let a CUDA graph read *tensor* where it is; not so where weights are frozen."""
    # A frozen graph takes marked inputs for constants (torch/_dynamo/variables/builder.py).
    if not config.freezing:
        torch._dynamo.mark_static_address(tensor)


def mark_range(
    tensor: torch.Tensor, dim: int, low: int, high: int | None, *, hint: int | None = None
) -> None:
    """Make the dim *dim* of *tensor* dynamic from *low* to *high*, with the size hint *hint*."""
    torch._dynamo.mark_dynamic(tensor, dim, hint_override=hint, min=low, max=high)


# The names are the same in torch 2.11 and 2.13. Where a name goes, its seconds are counted for the
# phase around it.
_PHASES: Final[Mapping[str, Phase]] = {
    "entire_frame_compile": Phase.TRACING,
    "backend_compile": Phase.AOT,
    "inductor_import": Phase.IMPORT,
    "inductor_compile": Phase.CACHES,
    "AOTAutogradCache.inductor_load": Phase.CACHES,
    "Scheduler.__init__": Phase.SCHEDULING,
    "GraphLowering.codegen": Phase.CODE_GENERATION,
    "code_gen": Phase.CODE_GENERATION,
    "PyCodeCache.load_by_key_path": Phase.LOADING_CODE,
    "async_compile.precompile": Phase.COMPILING_KERNELS,
    "CachingAutotuner.slow_precompile_config": Phase.COMPILING_KERNELS,
    "compile_file": Phase.COMPILING_KERNELS,
    "async_compile.wait": Phase.WAITING_FOR_KERNELS,
    "StaticAutotunerFuture.warm_precompile": Phase.WAITING_FOR_KERNELS,
    "benchmark_fused_nodes": Phase.MEASURING,
    "CachingAutotuner.benchmark_all_configs": Phase.MEASURING,
    "CachingAutotuner.coordinate_descent_tuning": Phase.MEASURING,
}
# Names that begin with the name of the operator whose candidates are tuned.
_ENDINGS: Final = (
    ("_template_precompiling", Phase.WAITING_FOR_KERNELS),
    ("_template_autotuning", Phase.MEASURING),
)


class PhaseTimers(Hooks):
    """Enters and leaves the phases of *clock* as the timers of this thread begin and end."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self._thread = threading.get_ident()

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(ChromiumEventLogger, "log_event_start", self._start)
        patches.hook(ChromiumEventLogger, "log_event_end", self._end)
        patches.hook(compile_fx_module, "fx_codegen_and_compile", self._lower)
        BenchmarkWatch(self._measuring, self._measured).attach(patches)

    @property
    def _is_ours(self) -> bool:
        return self._active and threading.get_ident() == self._thread

    def _start(
        self, original: Function, logger: Any, event_name: str, *args: Any, **kwargs: Any
    ) -> None:
        phase = _phase_of(event_name)
        if phase is not None and self._is_ours:
            self._clock.enter(phase)
        original(logger, event_name, *args, **kwargs)

    def _end(
        self, original: Function, logger: Any, event_name: str, *args: Any, **kwargs: Any
    ) -> None:
        original(logger, event_name, *args, **kwargs)
        if _phase_of(event_name) is not None and self._is_ours:
            self._clock.leave()

    def _lower(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        """The caches had no graph; the timer of the same name is around the lookup in them too."""
        if not self._is_ours:
            return original(*args, **kwargs)
        with self._clock.phase(Phase.LOWERING):
            return original(*args, **kwargs)

    def _measuring(self, _site: str) -> None:
        if self._is_ours:
            self._clock.enter(Phase.MEASURING)

    def _measured(self) -> None:
        if self._is_ours:
            self._clock.leave()


def _phase_of(event: str) -> Phase | None:
    phase = _PHASES.get(event)
    if phase is None:
        phase = next((found for ending, found in _ENDINGS if event.endswith(ending)), None)
    return phase


_SYSTEMS = ("linux", "win32")  # elsewhere inductor has no instruction set of x86
_X86 = ("x86_64", "AMD64")


def list_one_isa(patches: Patches) -> None:
    """Let inductor list the first instruction set that works, until *patches* is restored."""

    # Where a caller names one, and on other machines than x86, inductor's own list is used.
    def wrap(original: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
        first = functools.cache(_first_that_works)

        def valid_vec_isa_list() -> list[Any]:
            is_named = os.getenv("ATEN_CPU_CAPABILITY") or config.cpp.simdlen is not None
            is_x86 = sys.platform in _SYSTEMS and platform.machine() in _X86
            try:
                return first() if is_x86 and not is_named else original()
            except InvalidCxxCompiler:  # of torch, whose own list says what is missing
                return original()

        return valid_vec_isa_list

    patches.wrap(cpu_vec_isa, "valid_vec_isa_list", wrap)


def _first_that_works() -> list[Any]:
    names = cpu_vec_isa.x86_isa_checker()
    for isa in cpu_vec_isa.supported_vec_isa_list:
        if all(name in names for name in str(isa).split()) and isa:
            return [isa]
    return []
