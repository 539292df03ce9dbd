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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import islice
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
from warmup.inductor.launch.kernels import is_searchable, kwargs_of, make_config, refusal_reason
from warmup.inductor.listing import backlog, is_listing, listing, note_sent, sending
from warmup.inductor.machine import compile_into_cache
from warmup.inductor.patches import Function, Hooks, Patches
from warmup.keys.launch import LaunchProblem
from warmup.keys.question import Answers, Question

# For each config its launcher, or why it does not compile or load.
CompileConfigs = Callable[[Any, Sequence[Any]], list[Any]]

_FOLDERS: Final = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # as in async_compile.py
_WORKER_SECONDS: Final = 120.0

# Name and file of a kernel, and its config as values that equal configs share.
_Named = tuple[str, str, tuple[tuple[str, Any], ...]]


class _SentConfigs:
    def __init__(self) -> None:
        self.is_kept = False
        self.tasks: dict[_Named, Future[Any]] = {}
        self.searched: set[str] = set()


_sent: Final = _SentConfigs()


def compile_configs(kernel: Any, configs: Sequence[Any]) -> list[Any]:
    """Return the launcher of each of *configs* of *kernel*, or why there is none."""
    # Each is loaded once it is compiled, while workers compile the next ones.
    started, named = time.monotonic(), [_named(kernel, config) for config in configs]
    ready = {_named(kernel, each.config): each for each in kernel.launchers}
    new = {each: one for each, one in zip(named, configs, strict=True) if each not in ready}
    # What was sent is not compiled here too.
    tasks = send_configs(kernel, new.values()) if len(new) > 1 or _sent.is_kept else {}
    ahead = sum(task.done() for task in tasks.values())
    if kernel.fn.fn is None:  # compiled in a worker, which does not send the function back
        kernel.fn = kernel._reload_kernel().fn
    for each, config in new.items():
        left = started + _WORKER_SECONDS - time.monotonic()
        wait([tasks[each]] if each in tasks else [], timeout=max(left, 0))
        ready[each] = _load(kernel, config)
    if tasks:
        said = "%d configs compiled, %d of them ahead, and loaded in %.2f s: %s"
        logger.debug(said, len(new), ahead, time.monotonic() - started, kernel.fn.__name__)
    return [ready[each] for each in named]


def _named(kernel: Any, config: Any) -> _Named:
    return kernel.fn.__name__, kernel.filename, tuple(sorted(kwargs_of(config).items()))


def load_row(kernel: Any, winner: Winner, offered: Sequence[Any]) -> Any | None:
    """Return the launcher of a row's config; None where *kernel* cannot be forced to it."""
    if refusal_reason(winner, offered) is not None:
        return None
    (result,) = compile_configs(kernel, [make_config(winner, offered)])
    return None if isinstance(result, str) else result


def compile_in_workers(kernels: Iterable[tuple[Any, Sequence[Any]]]) -> None:
    """Compile each kernel's configs into Triton's cache at the same time, if there are workers."""
    tasks = [task for each in kernels for task in send_configs(*each).values()]
    wait(tasks, timeout=_WORKER_SECONDS)


def send_configs(kernel: Any, configs: Iterable[Any]) -> dict[_Named, Future[Any]]:
    """Send *configs* of *kernel* to inductor's workers, if any; return the tasks under way."""
    return {named: send() for named, send in _tasks_of(kernel, configs).items()}


def _tasks_of(kernel: Any, configs: Iterable[Any]) -> dict[_Named, Callable[[], Future[Any]]]:
    has_workers: Any = AsyncCompile.use_process_pool  # untyped in torch
    if kernel.filename is None or not has_workers():
        return {}
    environment = {name: os.environ[name] for name in _FOLDERS if name in os.environ}
    loaded = {_named(kernel, each.config) for each in kernel.launchers}
    named = dict.fromkeys(_named(kernel, config) for config in configs)
    return {each: partial(_send, each, environment) for each in named if each not in loaded}


def _send(named: _Named, environment: Mapping[str, str]) -> Future[Any]:
    with sending:
        if (task := _sent.tasks.get(named)) is None:
            pool: Any = AsyncCompile.process_pool()
            task = pool.submit(compile_into_cache, *named[:2], dict(named[2]), environment)
            if _sent.is_kept:
                _sent.tasks[named] = task
                note_sent(task)
        return task


def send_likely(kernel: Any, wanted: Sequence[Any], likely: Iterable[Any]) -> None:
    """Send the *wanted* configs of *kernel*, then as many *likely* next ones as keep workers busy.

    Nothing is sent where configs are not kept: there the workers are idle while kernels are timed.
    """
    if _sent.is_kept:
        send_configs(kernel, wanted)
        room = max(get_compile_threads() - len(wanted), 0)
        backlog.put(_tasks_of(kernel, islice(likely, room)).values())


def send_ahead(kernel: Any, problem: LaunchProblem, list_first: Callable[[], list[Any]]) -> None:
    """Send what *list_first* returns when workers would be idle, if a search of *kernel* is due."""
    is_due = is_searchable(kernel) and not is_listing() and note_search(problem)
    if is_due and (tasks := _tasks_of(kernel, list_first())):
        backlog.put(tasks.values(), kernel.filename)


def note_search(problem: LaunchProblem | None) -> bool:
    """Note the search of a kernel; return whether none of equal code was noted before."""
    key, before = problem and problem.kind.measured_once(problem.key), len(_sent.searched)
    _sent.searched.add(key or "")
    return len(_sent.searched) > before


def keep_configs() -> None:
    """Keep the tasks that are sent from now on, so that no config is sent twice."""
    _sent.is_kept = True


def forget_configs() -> None:
    backlog.drop()
    _sent.is_kept = False
    _sent.tasks.clear()
    _sent.searched.clear()


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
        """Lower a twin of a graph, without guards on its symbols, and drop it."""
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
                twin = make(GraphModule(args[0], copy.deepcopy(args[0].graph)), *args[1:], **kwargs)
                guards = twin.sizevars.shape_env.suppress_guards()
                with guards, V.set_graph_handler(twin), V.set_extern_kernel_nodes([]):
                    twin.run(*inputs)
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
