"""`read_kernels`, `read_graphs`, `add_to_caches`: compiled files out of and into torch's caches.

File names in a bundle: ``triton/KEY/FILE`` for kernels compiled by Triton (`FileCacheManager` in
triton/runtime/cache.py, 3.6 to 3.9), ``cpp/AB/FILE`` for libraries built by the C++ compiler
(`CppCodeCache` in codecache.py), ``fxgraph/...`` and ``aotautograd/...`` for whole graphs, which
contain Python objects that inductor unpickles. Inductor and Triton look every file up by a hash of
its inputs: a file that does not match is never loaded, and a missing file is compiled.
``compiled/FILE`` are calls that an earlier warmup compiled ahead of time: nothing reads them.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import torch
import torch._dynamo
import torch.compiler.config as compiler_config
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir
from torch._inductor.utils import fresh_cache
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from warmup.core.errors import ModelError
from warmup.core.files import temporary_folder

_GRAPH_FOLDERS: Final = ("fxgraph", "aotautograd")
_TRITON: Final = "triton"
_CPP: Final = "cpp"
# The files that a kernel is loaded from; the other files of an entry are intermediate code.
_LOADED: Final = (".cubin", ".hsaco", ".json", ".so")
_OF_KERNEL: Final = ".main.so"
_GROUP: Final = "__grp__"
_MAX_GROUP: Final = 1024 * 1024  # a group names some ten files
_TEMPORARY: Final = ".warmup-bundle-"
_LEFT_BEHIND_S: Final = 24 * 3600


def read_kernels(folder: Path, triton: Path) -> dict[str, bytes]:
    """Return the compiled kernels in inductor's cache folder *folder* and in *triton*, by name."""
    # A library that `kept_kernels` put there is left out where nothing asked for it: inductor
    # writes the source beside it. Libraries of probes, which are built once in a process, are all
    # returned.
    members: dict[str, bytes] = {}
    for path in sorted(triton.glob("*/*")):
        if path.suffix in _LOADED and path.is_file():
            content = path.read_bytes()
            if path.name.startswith(_GROUP):
                content = _without_folder(content)
            members[f"{_TRITON}/{path.parent.name}/{path.name}"] = content
    for path in sorted(folder.glob("??/*.so")):
        if path.with_suffix(".cpp").exists() or not path.name.endswith(_OF_KERNEL):
            members[f"{_CPP}/{path.parent.name}/{path.name}"] = path.read_bytes()
    return members


def read_graphs(folder: Path) -> dict[str, bytes]:
    """Return the whole graphs in inductor's cache folder *folder*, by name."""
    paths = (path for kind in _GRAPH_FOLDERS for path in sorted((folder / kind).rglob("*")))
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in paths if path.is_file()
    }


def read_caches(device: torch.device, *, graphs: bool) -> dict[str, bytes]:
    """Return the kernels in the caches for *device* by name, and the *graphs* if wanted."""
    roots = _roots(device)
    found = read_kernels(roots[_CPP], roots[_TRITON])
    return {**found, **read_graphs(roots[_CPP])} if graphs else found


def add_to_caches(members: Iterable[tuple[str, Iterable[bytes]]], device: torch.device) -> int:
    """Write *members*, names and contents in pieces, into the caches for *device*.

    Returns the number of new files. All members are written to temporary folders inside of the
    caches first, and moved only when the last piece of the last member was read without an error.
    Existing files stay as they are.

    Raises OSError where a folder cannot be written (files moved before are complete), ValueError
    where a member is no cache file or a group of kernels is malformed (nothing was moved).
    """
    roots = _roots(device)
    moves: list[tuple[Path, Path]] = []
    with contextlib.ExitStack() as stack:
        folders: dict[Path, Path] = {}
        for name, pieces in members:
            kind, _, rest = name.partition("/")
            if kind not in roots or not rest:
                raise ValueError(f"{name} is neither a kernel nor a graph")
            root, path = roots[kind], roots[kind] / rest
            if path.exists():
                collections.deque(pieces, maxlen=0)  # read, so that it is verified
                continue
            if root not in folders:  # caches that have every file may be read-only
                folders[root] = Path(stack.enter_context(_temporary_folder(root)))
            temporary = folders[root] / str(len(moves))
            is_group = path.name.startswith(_GROUP)
            with temporary.open("wb") as file:
                file.writelines([_with_folder(pieces, path.parent)] if is_group else pieces)
            path.parent.mkdir(parents=True, exist_ok=True)
            moves.append((temporary, path))
        for temporary, path in moves:
            temporary.replace(path)
    return len(moves)


def compiled_since(began: float, names: Iterable[str], device: torch.device) -> tuple[str, ...]:
    """Return what was compiled into the caches for *device* since *began* (seconds, `time.time`).

    Members of *names* are left out. A Triton entry is named by its folder.
    """
    roots = _roots(device)
    known = {name.rpartition("/")[0] if name.startswith(_TRITON) else name for name in names}
    compiled = {
        f"{_TRITON}/{path.parent.name}"
        for path in roots[_TRITON].glob("*/*")
        if (path.name.startswith(_GROUP) or path.suffix == ".so") and _is_newer(path, began)
    }
    compiled |= {
        f"{_CPP}/{path.parent.name}/{path.name}"
        for path in roots[_CPP].glob("??/*.so")
        if _is_newer(path, began)
    }
    return tuple(sorted(compiled - known))


def _roots(device: torch.device) -> dict[str, Path]:
    folder = Path(cache_dir())
    index = device.index if device.index is not None else 0
    return {
        _TRITON: Path(triton_cache_dir(index)),
        _CPP: folder,
        **{kind: folder / kind for kind in _GRAPH_FOLDERS},
    }


def _without_folder(group: bytes) -> bytes:
    names = [name for name in json.loads(group)["child_paths"] if Path(name).suffix in _LOADED]
    return json.dumps({"child_paths": {name: name for name in sorted(names)}}).encode()


def _with_folder(group: Iterable[bytes], folder: Path) -> bytes:
    content = b""
    for piece in group:
        content += piece
        if len(content) > _MAX_GROUP:
            raise ValueError(f"a Triton group file of more than {_MAX_GROUP} bytes")
    try:
        value = json.loads(content)
    except RecursionError as error:
        raise ValueError("a Triton group file that is nested too deeply") from error
    if type(value) is not dict or type(value.get("child_paths")) is not dict:
        raise ValueError("a Triton group file without child_paths")
    names = [Path(name).name for name in value["child_paths"]]
    return json.dumps({"child_paths": {name: str(folder / name) for name in names}}).encode()


def _temporary_folder(root: Path) -> tempfile.TemporaryDirectory[str]:
    root.mkdir(parents=True, exist_ok=True)
    for old in root.glob(f"{_TEMPORARY}*"):
        if not _is_newer(old, time.time() - _LEFT_BEHIND_S):
            shutil.rmtree(old, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=root, ignore_cleanup_errors=True)


def _is_newer(path: Path, began: float) -> bool:
    try:
        return path.stat().st_mtime >= began
    except OSError:  # removed in the meantime
        return False


_TRITON_FOLDER: Final = "TRITON_CACHE_DIR"
_kept: Final = ContextVar[Path | None]("kept", default=None)  # the folder of `kept_kernels`


@contextlib.contextmanager
def empty_caches(folder: str | None = None) -> Iterator[None]:
    """Use empty compile caches, in memory and on disk, while the context is open.

    The caches on disk are in a new folder inside *folder*, which is removed afterwards. They have
    the kernels of `kept_kernels`, where this thread has it open.
    """
    torch._dynamo.reset()
    with fresh_cache(dir=folder):
        if (kept := _kept.get()) is None:
            yield
        else:
            os.environ[_TRITON_FOLDER] = str(kept / _TRITON)  # `fresh_cache` restores it
            _copy_libraries(kept / _CPP, Path(cache_dir()))
            yield
            _copy_libraries(Path(cache_dir()), kept / _CPP)
    torch._dynamo.reset()


_libraries: Final[dict[Path, bytes]] = {}  # for the host; some are built once in a process


@contextlib.contextmanager
def kept_kernels() -> Iterator[None]:
    """Let each `empty_caches` find the kernels compiled since this context was opened.

    And the libraries for the host that earlier contexts compiled. Graphs, generated code and tuned
    configs are not among them. The folder is removed afterwards.
    """
    with temporary_folder("warmup-kernels-") as folder:
        for name, content in _libraries.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        token = _kept.set(folder)
        try:
            yield
        finally:
            _kept.reset(token)
        for path in folder.glob("*/*/*.so"):
            _libraries[path.relative_to(folder)] = path.read_bytes()


def _copy_libraries(source: Path, to: Path) -> None:
    for path in source.glob("??/*.so"):
        target = to / path.relative_to(source)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


CompiledEntry = Callable[..., Any]
_SIZE: Final = re.compile(
    r"L\['\w+'\]\S*\.size\(\)\[\d+\]"
)  # an input's size in the text of a guard
_USER_CODE: Final = "from user code:"
_STACK: Final = "User stack:"
_tagging = threading.RLock()


def with_own_code(model: CompiledEntry, name: str) -> CompiledEntry:
    """Return a function that calls *model* and has a code object of its own, named *name*."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=name)
    return call


def compile_entry(entry: CompiledEntry, mode: str | None, *, whole: bool) -> CompiledEntry:
    """Return *entry* compiled in *mode*; with *whole*, as one graph with marked dims alone dynamic.

    Else sizes after a graph break, which cannot be marked, become dynamic when they change.
    """
    if whole:
        return torch.compile(entry, dynamic=False, fullgraph=True, mode=mode)
    return torch.compile(entry, mode=mode)


@contextlib.contextmanager
def own_cache_entries(name: str) -> Iterator[None]:
    """Add *name* to the keys of inductor's caches for this thread while the context is open.

    The range of a dim is in the guards of a cache entry, not in its key: the entry of an
    overlapping range is loaded and then fails (torch/_inductor/codecache.py). Threads take turns,
    since the setting is process-wide in torch 2.11.
    """
    config: Any = compiler_config  # its functions are generated at run time
    with _tagging:
        before = config.cache_key_tag
        tagged = f"{before}+{name}" if before else name
        # config.patch would leave this table's tag behind, and the next table would append to it.
        restore = config._make_closure_patcher(cache_key_tag=tagged)()
        try:
            yield
        finally:
            restore()


def count_artifacts(entry: CompiledEntry) -> int:
    """Return the number of artifacts of *entry*, a function from `with_own_code`."""
    return len(_debug_get_cache_entry_list(entry.__code__))


def drop_artifacts(entry: CompiledEntry) -> None:
    """Drop the artifacts of *entry*, a function from `with_own_code`: its next call compiles."""
    reset_code(entry.__code__)


def count_graphs() -> int:
    """Return how many graphs torch.compile has made in this process."""
    return int(counters["stats"]["unique_graphs"])


def graph_break_reason(error: BaseException) -> str | None:
    """Return where and why a graph breaks; None if *error* is not about a graph break."""
    if not isinstance(error, Unsupported):
        return None
    return _first_reason(str(error), _USER_CODE)


def range_error(error: BaseException, interval: str) -> ModelError | None:
    """Return the error for a dim that cannot be dynamic in *interval*; None for other errors."""
    if not isinstance(error, ConstraintViolationError):
        return None
    reason = _SIZE.sub("size", _first_reason(str(error), _STACK))
    return ModelError(
        f"sizes {interval} cannot share one artifact: {reason}",
        "end a bucket there (`warmup explain` tells where), or use the policy exact or pad",
    )


def _first_reason(text: str, stack_mark: str) -> str:
    reason, _, stack = text.partition(stack_mark)
    lines = [line.strip(" -") for line in reason.splitlines() if line.strip()]
    violated = [line for line in lines[1:] if not line.startswith("For more")]
    first = violated[0] if lines[0].startswith("Constraints violated") and violated else lines[0]
    frames = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    return f"{first} ({frames[-1]})" if frames else first
