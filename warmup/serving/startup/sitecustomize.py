"""`TableStartup`: installs a table in this process before its first compile, if it compiles.

`warmup run` puts this folder on PYTHONPATH, and Python imports ``sitecustomize`` at its start: this
is the only module of warmup whose import has an effect. A finder waits until torch is imported, and
the table is installed when torch first compiles, or loads a graph that was compiled ahead of time,
so programs without torch pay for a few definitions only. Imports are few for the same reason:
``typing`` would take longer than all else. The plugin for engines (serving/engines.py) starts the
same finder later in a process, when torch is imported already.
"""
# ruff: noqa: INP001  imported by its name on PYTHONPATH, never as a part of the package

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# The program of inductor's compile workers (compile_worker/subproc_pool.py): they need no table.
_COMPILE_WORKER = "torch/_inductor/compile_worker/__main__.py"

_REFUSALS = ("TableMismatchError", "UnsupportedTorchError", "InductorChangedError")
_EXIT_REFUSED = 3  # as the other errors of a build

# Functions that begin a compile, or load a graph that was compiled ahead of time, by module. The
# inner ones are for callers that do not use torch.compile; install replaces some of them itself.
_TORCH_NAME = "torch"
_INSTALL = "warmup.serving.install"
_ENTRY_POINTS = {
    _TORCH_NAME: ("compile",),
    "torch._dynamo.convert_frame": ("_compile",),
    "torch._functorch._aot_autograd.aot_autograd_result": ("deserialize_bundled_cache_entry",),
    "torch._inductor.compile_fx": ("compile_fx", "compile_fx_inner"),
}


class TableStartup:
    """An import finder that installs the table at the first call of an entry point of torch."""

    def __init__(self, on_miss: str, uncovered: str, starter: str) -> None:
        self._on_miss = on_miss
        self._uncovered = uncovered
        self._starter = starter  # the first words of this process's complaint
        self._entry_points = dict(_ENTRY_POINTS)
        self._is_waiting = True
        self._has_reported = False
        self._lock = _thread.RLock()  # the installing thread takes it again if it compiles
        self._guarded: list[tuple[ModuleType, str, Any, Any]] = []
        self._removed: set[Any] = set()  # guards that are in nobody's way any more

    def start(self) -> None:
        """Wait for the first compile in this process, whose modules may be imported already.

        `torch.compile` itself is left alone where torch is imported: engines decorate functions
        in processes that never call them.
        """
        if _TORCH_NAME in sys.modules:
            del self._entry_points[_TORCH_NAME]
        if os.environ.get("WARMUP_RECORDING"):
            # A program that installs a table itself gets the handle of the recording.
            self._entry_points[_INSTALL] = ("install_as",)
        sys.meta_path.insert(0, self)
        for name in self._entry_points:
            if name in sys.modules:
                self._guard(sys.modules[name])

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the later finders, with the entry points guarded after loading."""
        if name not in self._entry_points or not self._is_waiting:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    loader: Any = _Loader(spec, spec.loader, self._guard)
                    spec.loader = loader
                return spec
        return None

    def _guard(self, module: ModuleType) -> None:
        if self._is_waiting:
            for name in self._entry_points[module.__name__]:
                if hasattr(module, name):
                    self._guard_function(module, name, getattr(module, name))

    def _guard_function(self, module: ModuleType, name: str, original: Callable[..., Any]) -> None:
        import functools

        @functools.wraps(original)
        def install_first(*args: Any, **kwargs: Any) -> Any:
            self._install_once(freezing=args[0].freezing if module.__name__ == _INSTALL else None)
            # Whoever wrapped this guard, as an install of the program's own does, calls it.
            is_replaced = install_first in self._removed
            return (getattr(module, name) if is_replaced else original)(*args, **kwargs)

        setattr(module, name, install_first)
        self._guarded.append((module, name, original, install_first))

    def _install_once(self, *, freezing: bool | None) -> None:
        """Install the table, unless that is done or going on in this thread; other threads wait."""
        # With ``strict`` a failure is raised, and again at the next compile. In a build, a torch
        # that is not supported and a table for another machine, into which nothing is written, end
        # the program.
        with self._lock:
            if not self._is_waiting:
                return
            self._is_waiting = False
            self._unguard({*self._entry_points} - {_TORCH_NAME})
            try:
                self._install(freezing=freezing)
            except Exception as error:
                self.report_failure(error)
                if self._on_miss == "strict" or _is_refusal(error):
                    for module, name, _, guard in self._guarded:
                        setattr(module, name, guard)
                    self._removed.clear()
                    self._is_waiting = True
                    if os.environ.get("WARMUP_RECORDING"):
                        raise SystemExit(_EXIT_REFUSED) from None  # the reason is reported
                    raise
            self._unguard({_TORCH_NAME})

    def _unguard(self, wanted: set[str]) -> None:
        for module, name, original, guard in self._guarded:
            if module.__name__ in wanted and getattr(module, name) is guard:
                setattr(module, name, original)
                self._removed.add(guard)

    def _install(self, *, freezing: bool | None) -> None:
        if os.environ.get("WARMUP_RECORDING"):
            from warmup.tuning.program import record

            record(freezing=freezing)
            return
        from warmup.serving.install import InstallRequest, install_as

        install_as(InstallRequest(on_miss=self._on_miss, uncovered=self._uncovered))

    def report_failure(self, error: Exception) -> None:
        """Report once, on stderr and in the audit log, that this process has no table."""
        if self._has_reported:
            return
        self._has_reported = True
        import contextlib
        import json
        import time

        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        sys.stderr.write(f"{self._starter}: no table in process {os.getpid()}: {reason}\n")
        record = {
            "event": "install.failed",
            "schema": 1,
            "run": os.urandom(6).hex(),
            "pid": os.getpid(),
            "seq": 0,
            "time": round(time.time(), 6),
            "error": reason,
            "refused": _is_refusal(error),
        }
        # The newline in front ends what a killed process may have left of a line.
        line = "\n" + json.dumps(record, separators=(",", ":")) + "\n"
        path = os.environ.get("WARMUP_AUDIT_LOG")
        if not path:
            return
        with contextlib.suppress(OSError):  # stderr has the failure already
            # Without waiting for a reader, where the log is a FIFO that nobody reads.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
            log = os.open(path, flags, 0o644)
            try:
                os.write(log, line.encode())
            finally:
                os.close(log)


def _is_refusal(error: Exception) -> bool:
    # By name: where warmup cannot be imported, its error class cannot either.
    return type(error).__name__ in _REFUSALS


class _Loader:
    """Loads a module with its own loader, then calls *then* with it; the module is unchanged."""

    def __init__(self, spec: ModuleSpec, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._spec = spec
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)


def _run_next() -> None:
    folder = __file__.rpartition(os.sep)[0]
    position = sys.path.index(folder)
    this = sys.modules.pop(__name__)
    del sys.path[position]
    try:
        __import__(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    finally:
        sys.path.insert(position, folder)  # some programs pass their sys.path on to children
        sys.modules.setdefault(__name__, this)


if __name__ == "sitecustomize":
    is_compile_worker = any(word.endswith(_COMPILE_WORKER) for word in sys.orig_argv)
    is_recorded = os.environ.get("WARMUP_RECORDING")
    if (is_recorded or os.environ.get("WARMUP_TABLE")) and not is_compile_worker:
        TableStartup(
            os.environ.get("WARMUP_ON_MISS", "fallback"),
            os.environ.get("WARMUP_UNCOVERED", "library"),
            "warmup build" if is_recorded else "warmup run",
        ).start()
    _run_next()
