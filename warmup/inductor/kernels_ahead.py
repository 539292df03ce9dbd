"""`KernelsAhead`: in a build, compiles the candidates of all questions of a graph at the same time.

Inductor lowers a graph node by node, and compiles the candidates of a question when it asks it: the
workers idle while one question is measured, and the build waits while the next is compiled. Here a
graph is lowered once more beforehand. In that lowering every question gets the default at once, and
nothing is measured; the candidates are only sent to the workers. The lowering that follows asks the
same questions, and finds its candidates compiled, or waits for those that are not yet. In the order
``BEFORE`` it begins when all are compiled.

Hooks:

- ``GraphLowering.__init__`` keeps its arguments, and ``GraphLowering.run`` lowers a twin first.
- ``AlgorithmSelectorCache.make_precompile_fn`` sends the candidates of a selection to the workers;
  while a graph is only listed, nobody waits for them.
- ``AsyncCompile.triton`` sends one of them, and later returns what is under way for the same source
  (``CompiledTritonKernels``), so that no candidate is compiled twice. The hook notes the tasks.
- Reductions send their kernels as `send_configs` does (launch/compiling.py).
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, cast

from torch._inductor import metrics
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.virtualized import V
from torch.fx import GraphModule

from warmup.core.compile_modes import CompileOrder
from warmup.core.events import logger
from warmup.inductor.launch.compiling import forget_configs, keep_configs
from warmup.inductor.listing import is_listing, listing, note_sent, wait_for_sent
from warmup.inductor.patches import Hooks, Patches
from warmup.keys.question import Answers

# Of `Answers`: what measures or reports. A question that is only listed does neither.
_EFFECTS: Final = frozenset(
    {
        *("hit", "miss", "scheduled", "uncovered"),
        "measures",  # nothing is measured while a graph is listed
        *("measure", "measure_calls", "measure_search", "try_search", "measure_region"),
    }
)


class KernelsAhead(Hooks):
    """Lowers each graph twice while attached: first to send its candidates to the workers."""

    def __init__(
        self,
        order: CompileOrder = CompileOrder.BESIDE,
        report: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """Report while a graph waits for its candidates how many are compiled, and of how many."""
        self._order, self._report = order, report
        self._made: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()
        self._local = threading.local()

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        patches.on_restore(self._deactivate)
        keep_configs()
        patches.wrap(GraphLowering, "__init__", self._wrap_init)
        patches.wrap(GraphLowering, "run", self._wrap_run)
        patches.wrap(AlgorithmSelectorCache, "make_precompile_fn", self._wrap_precompile)
        patches.wrap(AsyncCompile, "triton", self._wrap_submit)

    def silent(self, answers: Answers) -> Answers:
        """Return *answers* that neither measure nor report while a graph is only listed."""
        return cast("Answers", _SilentAnswers(answers))

    def _deactivate(self) -> None:
        super()._deactivate()
        forget_configs()

    def _wrap_init(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(graph: Any, *args: Any, **kwargs: Any) -> None:
            original(graph, *args, **kwargs)
            if self._active and type(graph) is GraphLowering and not is_listing():
                self._made[graph] = args, kwargs

        return init

    def _wrap_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(graph: Any, *inputs: Any) -> Any:
            made = self._made.pop(graph, None)
            # A candidate may be a graph, which inductor lowers while it lowers the one that asks.
            if self._active and made is not None and not getattr(self._local, "is_lowering", False):
                self._list(*made, inputs)
            with self._lowering():
                return original(graph, *inputs)

        return run

    @contextlib.contextmanager
    def _lowering(self) -> Iterator[None]:
        outer, self._local.is_lowering = getattr(self._local, "is_lowering", False), True
        try:
            yield
        finally:
            self._local.is_lowering = outer

    def _list(self, args: Any, kwargs: Any, inputs: Any) -> None:
        """Lower and schedule a twin of a graph made with *args* and *kwargs*, and drop it.

        The twin has the graph's own symbols of sizes; its lowering adds no guard on them.
        """
        has_workers: Any = AsyncCompile.use_process_pool  # untyped in torch
        if not has_workers():
            return
        started, counted = time.monotonic(), metrics.generated_kernel_count
        with listing() as sent, self._lowering():
            try:
                make: Any = GraphLowering
                twin = make(_copy_of(args[0]), *args[1:], **kwargs)
                guards = twin.sizevars.shape_env.suppress_guards()
                with guards, V.set_graph_handler(twin), V.set_extern_kernel_nodes([]):
                    twin.run(*inputs)
                    twin.codegen()
            except Exception as error:  # noqa: BLE001  the lowering that counts says what is wrong
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                logger.warning("not every candidate of a graph is compiled ahead: %s", reason)
            finally:
                metrics.generated_kernel_count = counted
        seconds = time.monotonic() - started
        logger.debug("%d kernels sent to the workers ahead in %.2f s", sent.count, seconds)
        if self._order is CompileOrder.BEFORE:
            wait_for_sent(self._report)
            logger.debug("compiled ahead in %.2f s", time.monotonic() - started)

    def _wrap_submit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def triton(*args: Any, **kwargs: Any) -> Any:
            kernel = original(*args, **kwargs)
            task = getattr(kernel, "future", None)
            if is_listing() and isinstance(task, Future):
                note_sent(task)
            return kernel

        return triton

    def _wrap_precompile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def make_precompile_fn(
            cache: Any, choices: list[Any], *args: Any, **kwargs: Any
        ) -> Callable[..., Any]:
            wait: Callable[..., Any] = original(cache, choices, *args, **kwargs)
            if not is_listing():
                return wait
            # It marks the choices that fail, and those of the lowering that follows are others.
            known = cache.precompile_cache
            for key in [key for key, function in known.items() if function is wait]:
                del known[key]
            return lambda *_args, **_kwargs: {}

        return make_precompile_fn


def _copy_of(module: GraphModule) -> GraphModule:
    """Return *module* with nodes of its own: lowering notes on nodes what it decides."""
    return GraphModule(module, copy.deepcopy(module.graph))


class _SilentAnswers:
    """Passes every call on, but neither measures nor reports while a graph is only listed."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return _nothing if name in _EFFECTS and is_listing() else getattr(self._answers, name)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None
