"""`compile_configs`: compiles launch configs of generated Triton kernels, in inductor's workers.

Each config is compiled in a worker, which writes it to Triton's cache. This process then finds it
there, and loads it. Without workers this process compiles the configs, one after the other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final

from torch._dynamo.device_interface import DeviceGuard
from torch._inductor.async_compile import AsyncCompile, get_compile_threads

from warmup.core.error_text import printable
from warmup.core.events import logger
from warmup.core.rows import Winner
from warmup.inductor.launch.compile_task import compile_into_cache
from warmup.inductor.launch.configs import kwargs_of, make_config, refusal_reason
from warmup.inductor.listing import note_sent

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
    """Return the launcher of each of *configs* of *kernel*, or a text that says why there is none.

    The kernel itself stays as it is.
    """
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
    """Return the launcher of a row's config; None where *kernel* cannot be forced to it.

    For kernels that were loaded before the table was installed, with other configs.
    """
    if refusal_reason(winner, offered) is not None:
        return None
    (result,) = compile_configs(kernel, [make_config(winner, offered)])
    return None if isinstance(result, str) else result


def compile_in_workers(kernels: Iterable[tuple[Any, Sequence[Any]]]) -> None:
    """Compile each kernel's configs into Triton's cache, those of all *kernels* at the same time.

    What was sent before is waited for. Without workers nothing is done. What fails is compiled
    again when it is loaded, and says why.
    """
    started = time.monotonic()
    if tasks := send_configs(kernels):
        wait(tasks, timeout=_WORKER_SECONDS)
        logger.debug("%d configs compiled in %.2f s", len(tasks), time.monotonic() - started)


def send_configs(kernels: Iterable[tuple[Any, Sequence[Any]]]) -> list[Future[Any]]:
    """Send each kernel's configs to inductor's workers, and return the tasks under way.

    Between `keep_configs` and `forget_configs` a config that was sent before has its task. Without
    workers there are no tasks.
    """
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
    """Send the *wanted* configs of *kernel*, and some *likely* next: as many as keep workers busy.

    Nothing is sent where configs are not kept: there the workers are idle while kernels are timed.
    """
    if _sent.is_kept:
        room = max(get_compile_threads() - len(wanted), 0)
        send_configs([(kernel, wanted), (kernel, likely[:room])])


def keep_configs() -> None:
    """Keep the tasks that are sent from now on, so that no config is sent twice."""
    _sent.is_kept = True


def forget_configs() -> None:
    """Forget the tasks that were kept, and keep none from now on."""
    _sent.is_kept = False
    _sent.tasks.clear()


def _load(kernel: Any, config: Any) -> Any:
    interface = kernel.get_device_interface()
    try:
        with kernel.lock, DeviceGuard(interface, kernel.triton_meta["device"]):
            return kernel._precompile_config(config).make_launcher()
    except Exception as error:  # noqa: BLE001  a compiler or driver may raise anything
        return printable(f"{type(error).__name__}: {error}".partition("\n")[0])
