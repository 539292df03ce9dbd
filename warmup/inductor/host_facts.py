"""`Compiler` and `Folder`: the host compiler, temporary folder and cache folders of a compile.

Does not import inductor, which creates its cache folder on import and fails if it cannot.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import mmap
import os
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from warmup.core.errors import SettingsError
from warmup.core.text import problem_in

_STUB_SECONDS: Final = 60
_CACHE_SETTING: Final = "TORCHINDUCTOR_CACHE_DIR"
_C_STUB: Final = "#include <Python.h>\nint stub(void) { return 0; }\n"
_CPP_STUB: Final = "#include <cmath>\n#include <omp.h>\n" + _C_STUB


@dataclass(frozen=True, slots=True)
class Compiler:
    """The host compiler that torch.compile needs, if any; ``error`` says why it failed."""

    language: str
    command: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """A cache folder as this process would use it; ``setting`` is the variable that changes it.

    ``error`` says why it cannot be written, ``created`` are the folders that the test made,
    innermost first.
    """

    name: str
    setting: str
    path: str | None = None
    error: str | None = None
    is_executable: bool = True
    free_bytes: int = 0
    created: tuple[Path, ...] = ()


def version_of(*distributions: str) -> str | None:
    """Return the version of the first of *distributions* that is installed; None without one."""
    for distribution in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return None


def temporary_error() -> str | None:
    try:
        tempfile.gettempdir()
    except OSError as error:
        return problem_in(error)
    return None


def c_compiler() -> Compiler:
    """Return the C compiler that Triton builds its launchers with, after compiling a stub."""
    # As in triton/runtime/build.py, 3.6 to 3.9: CC is used unchecked, and no compiler is bundled.
    command = os.environ.get("CC", shutil.which("gcc") or shutil.which("clang"))
    if command is None:
        return Compiler("C")
    return Compiler("C", command, _stub_error(command, "stub.c", _C_STUB))


def cpp_compiler() -> Compiler:
    """Return the C++ compiler that inductor uses for CPU kernels, after compiling a stub."""
    command = os.environ.get("CXX", "g++")  # as config.cpp.cxx, torch 2.11 to 2.15
    if shutil.which(command) is None:
        return Compiler("C++")
    return Compiler("C++", command, _stub_error(command, "stub.cpp", _CPP_STUB, "-fopenmp"))


def check_cache_folder() -> None:
    """Make inductor's cache folder, as importing inductor does; else a SettingsError."""
    folder = ""
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    try:
        folder = os.environ.get(_CACHE_SETTING) or _default_folder()
        Path(folder).mkdir(parents=True, exist_ok=True)
    except (KeyError, ModuleNotFoundError, OSError) as error:  # a user without a name, no /tmp
        raise SettingsError(
            f"inductor's cache folder {folder} cannot be made: {problem_in(error)}",
            f"name a writable folder in the variable {_CACHE_SETTING}",
        ) from error


def cache_folders(*, on_gpu: bool) -> tuple[Folder, ...]:
    """Return inductor's cache folder, and on a GPU Triton's; `remove_created` removes new ones."""
    return (_inductor_folder(), _triton_folder()) if on_gpu else (_inductor_folder(),)


def remove_created(folders: tuple[Folder, ...]) -> None:
    """Remove the empty folders that testing *folders* created: the server may be another user."""
    for folder in folders:
        for part in folder.created:
            with contextlib.suppress(OSError):
                part.rmdir()


def _inductor_folder() -> Folder:
    name, setting = "cache folder", _CACHE_SETTING
    try:
        path = os.environ.get(setting) or _default_folder()
    except (KeyError, ModuleNotFoundError, OSError) as error:  # a user without a name, no /tmp
        return Folder(name, setting, error=str(error.args[-1]))
    return _tested(name, setting, path)


def _default_folder() -> str:
    """Return inductor's default folder without its package, which would create it."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    path = Path(torch.origin).parent / "_inductor" / "runtime" / "cache_dir_utils.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.default_cache_dir())


def _triton_folder() -> Folder:
    setting = "TRITON_CACHE_DIR"  # the default is that of knobs.py, Triton 3.6 to 3.9
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~/")  # noqa: PTH111  never raises
    path = os.environ.get(setting) or str(Path(home, ".triton", "cache"))
    return _tested("Triton folder", setting, path)


def _tested(name: str, setting: str, named: str) -> Folder:
    path = Path(named).absolute()
    created = tuple(part for part in (path, *path.parents) if not os.path.lexists(part))
    folder = Folder(name, setting, str(path), created=created)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            is_executable = _can_load_code(file)
        free = shutil.disk_usage(path).free
    except OSError as error:
        return replace(folder, error=problem_in(error))
    return replace(folder, is_executable=is_executable, free_bytes=free)


def _can_load_code(file: IO[bytes]) -> bool:
    file.write(bytes(mmap.PAGESIZE))
    file.flush()
    try:  # as the loader maps a shared object; fails on a noexec mount
        mmap.mmap(
            file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC
        ).close()
    except OSError:
        return False
    return True


def _stub_error(command: str, name: str, text: str, *flags: str) -> str | None:
    scheme = sysconfig.get_default_scheme()
    if scheme == "posix_local":  # as triton/runtime/build.py: Debian's scheme has no headers
        scheme = "posix_prefix"
    include = f"-I{sysconfig.get_path('include', scheme)}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, name)
            source.write_text(text, encoding="ascii")
            library = str(source.with_suffix(".so"))
            done = subprocess.run(  # noqa: S603  the compiler that torch.compile would run
                [command, str(source), "-shared", "-fPIC", include, "-o", library, *flags],
                capture_output=True,
                errors="replace",
                timeout=_STUB_SECONDS,
                check=False,
            )
    except OSError as error:
        return problem_in(error)
    except subprocess.TimeoutExpired:
        return f"did not finish in {_STUB_SECONDS} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.splitlines() or [f"exit status {done.returncode}"]
    return next((line for line in lines if "error" in line), lines[0]).strip()
