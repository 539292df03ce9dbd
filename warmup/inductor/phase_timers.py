"""`PhaseTimers`: torch's own timers, reported to a `PhaseClock` as phases of a start.

Each `dynamo_timed` block of torch reports its begin and its end to ChromiumEventLogger
(torch/_dynamo/utils.py), whether or not anything is logged. Blocks nest; `PhaseClock` gives a
second to the innermost. A block without a phase of its own belongs to the block around it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch._dynamo.utils import ChromiumEventLogger
from torch._inductor import compile_fx as compile_fx_module

from warmup.core.phases import Phase, PhaseClock
from warmup.inductor.benchmarks import BenchmarkWatch
from warmup.inductor.patches import Hooks, Patches

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
    """Enters and leaves the phases of *clock* as the timers of this thread begin and end.

    Blocks of other threads are ignored: this thread waits for them, or does not need them.
    """

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self._thread = threading.get_ident()

    def attach(self, patches: Patches) -> None:
        """Report to the clock until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(ChromiumEventLogger, "log_event_start", self._wrap_start)
        patches.wrap(ChromiumEventLogger, "log_event_end", self._wrap_end)
        patches.wrap(compile_fx_module, "fx_codegen_and_compile", self._wrap_lowering)
        BenchmarkWatch(self._measuring, self._measured).attach(patches)

    @property
    def _is_ours(self) -> bool:
        return self._active and threading.get_ident() == self._thread

    def _wrap_start(self, original: Callable[..., None]) -> Callable[..., None]:
        def start(logger: Any, event_name: str, *args: Any, **kwargs: Any) -> None:
            phase = _phase_of(event_name)
            if phase is not None and self._is_ours:
                self._clock.enter(phase)
            original(logger, event_name, *args, **kwargs)

        return start

    def _wrap_end(self, original: Callable[..., None]) -> Callable[..., None]:
        def end(logger: Any, event_name: str, *args: Any, **kwargs: Any) -> None:
            original(logger, event_name, *args, **kwargs)
            if _phase_of(event_name) is not None and self._is_ours:
                self._clock.leave()

        return end

    def _wrap_lowering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return *original* as the phase of lowering: the caches had no graph.

        The timer of the same name is around the lookup in the caches too.
        """

        def lower(*args: Any, **kwargs: Any) -> Any:
            if not self._is_ours:
                return original(*args, **kwargs)
            with self._clock.phase(Phase.LOWERING):
                return original(*args, **kwargs)

        return lower

    def _measuring(self, _site: str) -> None:
        if self._is_ours:
            self._clock.enter(Phase.MEASURING)

    def _measured(self) -> None:
        if self._is_ours:
            self._clock.leave()


def _phase_of(event: str) -> Phase | None:
    """Return the phase of torch's timer *event*; None where it belongs to the timer around it."""
    phase = _PHASES.get(event)
    if phase is None:
        phase = next((found for ending, found in _ENDINGS if event.endswith(ending)), None)
    return phase
