"""`compile_configs`: compiles launch configs of generated Triton kernels, in inductor's workers.

Each config is compiled in a worker, which writes it to Triton's cache. This process then finds it
there, and loads it. Without workers this process compiles the configs, one after the other.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final

from torch._dynamo.device_interface import DeviceGuard
from torch._inductor import metrics
from torch._inductor.async_compile import AsyncCompile, get_compile_threads
from torch._inductor.graph import GraphLowering
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.virtualized import V
from torch.fx import GraphModule

from warmup.core.events import HookEvent, logger
from warmup.core.rows import Winner
from warmup.core.text import printable
from warmup.inductor.launch.kernels import kwargs_of, make_config, refusal_reason
from warmup.inductor.listing import is_listing, listing, note_sent
from warmup.inductor.machine import compile_into_cache
from warmup.inductor.patches import Function, Hooks, Patches
from warmup.keys.question import Answers, Question

# For each config its launcher, or why it does not compile or load.
CompileConfigs = Callable[[Any, Sequence[Any]], list[Any]]

_FOLDERS: Final = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # as in async_compile.py
_WORKER_SECONDS: Final = 120.0


class _SentConfigs:
    """The tasks sent to the workers, by name and file of a kernel and its config, while kept."""

    def __init__(self) -> None:
        self.is_kept = False
        self.tasks: dict[tuple[Any, ...], Future[Any]] = {}


_sent: Final = _SentConfigs()


def compile_configs(kernel: Any, configs: Sequence[Any]) -> list[Any]:
    """Return the launcher of each of *configs* of *kernel*, or why there is none."""
    ready = {spelled(each.config): each for each in kernel.launchers}
    new = [config for config in configs if spelled(config) not in ready]
    if len(new) > 1 or _sent.is_kept:  # what was sent is not compiled here too
        compile_in_workers([(kernel, new)])
    if kernel.fn.fn is None:  # compiled in a worker, which does not send the function back
        kernel.fn = kernel._reload_kernel().fn
    return [ready.get(spelled(config)) or _load(kernel, config) for config in configs]


def spelled(config: Any) -> tuple[tuple[str, Any], ...]:
    """Return *config* as a text-like value that equal configs share."""
    return tuple(sorted(kwargs_of(config).items()))


def load_row(kernel: Any, winner: Winner, offered: Sequence[Any]) -> Any | None:
    """Return the launcher of a row's config; None where *kernel* cannot be forced to it."""
    if refusal_reason(winner, offered) is not None:
        return None
    (result,) = compile_configs(kernel, [make_config(winner, offered)])
    return None if isinstance(result, str) else result


def compile_in_workers(kernels: Iterable[tuple[Any, Sequence[Any]]]) -> None:
    """Compile each kernel's configs into Triton's cache at the same time, if there are workers."""
    started = time.monotonic()
    if tasks := send_configs(kernels):
        wait(tasks, timeout=_WORKER_SECONDS)
        logger.debug("%d configs compiled in %.2f s", len(tasks), time.monotonic() - started)


def send_configs(kernels: Iterable[tuple[Any, Sequence[Any]]]) -> list[Future[Any]]:
    """Send each kernel's configs to inductor's workers, if any, and return the tasks under way."""
    has_workers: Any = AsyncCompile.use_process_pool  # untyped in torch
    if not has_workers():
        return []
    pool: Any = AsyncCompile.process_pool()
    environment = {name: os.environ[name] for name in _FOLDERS if name in os.environ}
    tasks = []
    for kernel, configs in kernels:
        if kernel.filename is None:
            continue
        name, path = kernel.fn.__name__, kernel.filename
        for key, config in {spelled(one): kwargs_of(one) for one in configs}.items():
            task = _sent.tasks.get((name, path, key))
            if task is None:
                task = pool.submit(compile_into_cache, name, path, config, environment)
                if _sent.is_kept:
                    _sent.tasks[name, path, key] = task
                    note_sent(task)
            tasks.append(task)
    return tasks


def send_likely(kernel: Any, wanted: Sequence[Any], likely: Sequence[Any]) -> None:
    """Send the *wanted* configs of *kernel*, and as many *likely* next ones as keep workers busy.

    Nothing is sent where configs are not kept: there the workers are idle while kernels are timed.
    """
    if _sent.is_kept:
        room = max(get_compile_threads() - len(wanted), 0)
        send_configs([(kernel, wanted), (kernel, likely[:room])])


def keep_configs() -> None:
    """Keep the tasks that are sent from now on, so that no config is sent twice."""
    _sent.is_kept = True


def forget_configs() -> None:
    _sent.is_kept = False
    _sent.tasks.clear()


def _load(kernel: Any, config: Any) -> Any:
    interface = kernel.get_device_interface()
    try:
        with kernel.lock, DeviceGuard(interface, kernel.triton_meta["device"]):
            return kernel._precompile_config(config).make_launcher()
    except Exception as error:  # noqa: BLE001  a compiler or driver may raise anything
        return printable(f"{type(error).__name__}: {error}".partition("\n")[0])


class KernelsAhead(Hooks):
    """Lowers each graph twice while attached: first to send its candidates to the workers."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()
        self._local = threading.local()

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(GraphLowering, "__init__", self._init)
        patches.hook(GraphLowering, "run", self._run)
        patches.hook(AlgorithmSelectorCache, "make_precompile_fn", self._make_precompile_fn)
        patches.hook(AsyncCompile, "triton", self._triton)

    def _init(self, original: Function, graph: Any, *args: Any, **kwargs: Any) -> None:
        original(graph, *args, **kwargs)
        if self._active and type(graph) is GraphLowering and not is_listing():
            self._made[graph] = args, kwargs

    def _run(self, original: Function, graph: Any, *inputs: Any) -> Any:
        made = self._made.pop(graph, None)
        # A candidate may be a graph, which inductor lowers while it lowers the one that asks.
        if self._active and made is not None and not getattr(self._local, "is_lowering", False):
            self._list(*made, inputs)
        with self._lowering():
            return original(graph, *inputs)

    @contextlib.contextmanager
    def _lowering(self) -> Iterator[None]:
        outer, self._local.is_lowering = getattr(self._local, "is_lowering", False), True
        try:
            yield
        finally:
            self._local.is_lowering = outer

    def _list(self, args: Any, kwargs: Any, inputs: Any) -> None:
        """Lower and schedule a twin of a graph, without guards on its symbols, and drop it."""
        wait_until_ready: Any = AsyncCompile.wait_pool_ready  # untyped in torch
        with contextlib.suppress(TimeoutError):  # then kernels are compiled in this process
            wait_until_ready(timeout=_WORKER_SECONDS)
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

    def _triton(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        kernel = original(*args, **kwargs)
        task = getattr(kernel, "future", None)
        if is_listing() and isinstance(task, Future):
            note_sent(task)
        return kernel

    def _make_precompile_fn(
        self, original: Function, cache: Any, choices: list[Any], *args: Any, **kwargs: Any
    ) -> Callable[..., Any]:
        wait: Callable[..., Any] = original(cache, choices, *args, **kwargs)
        if not is_listing():
            return wait
        # It marks the choices that fail, and those of the lowering that follows are others.
        known = cache.precompile_cache
        for key in [key for key, function in known.items() if function is wait]:
            del known[key]
        return lambda *_args, **_kwargs: {}


def _copy_of(module: GraphModule) -> GraphModule:
    return GraphModule(module, copy.deepcopy(module.graph))


class SilentAnswers:
    """Passes every call on, but neither measures nor reports while a graph is only listed."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.settings, self.find = answers.settings, answers.find

    def measure(self, question: Question) -> Winner | None:
        return None if is_listing() else self._answers.measure(question)

    def emit(self, event: HookEvent) -> None:
        if not is_listing():
            self._answers.emit(event)
