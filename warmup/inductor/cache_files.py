"""The compiled kernels and graphs in inductor's cache folder: taken out of it, put into it.

Names, as they stand in a bundle: ``triton/KEY/FILE`` for what Triton compiled (`FileCacheManager`
in triton/runtime/cache.py, 3.6 to 3.9), ``cpp/AB/FILE`` for libraries that the C++ compiler made
(`CppCodeCache` in codecache.py), ``fxgraph/...`` and ``aotautograd/...`` for whole graphs, which
hold Python objects that inductor unpickles. Every one of them is found by a hash of what it was
made of, so a file that does not fit is not taken, and what is missing is compiled.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir

_GRAPH_FOLDERS: Final = ("fxgraph", "aotautograd")
_TRITON: Final = "triton"
_CPP: Final = "cpp"
# What a kernel is loaded from; the rest of an entry is what it was on its way there.
_LOADED: Final = (".cubin", ".hsaco", ".json", ".so")
_GROUP: Final = "__grp__"


def take_kernels(folder: Path, triton: Path) -> dict[str, bytes]:
    """Return the compiled kernels in the cache folders *folder*, inductor's, and *triton*."""
    found: dict[str, bytes] = {}
    for path in sorted(triton.glob("*/*")):
        if path.suffix in _LOADED and path.is_file():
            content = path.read_bytes()
            if path.name.startswith(_GROUP):
                content = _without_folder(content)
            found[f"{_TRITON}/{path.parent.name}/{path.name}"] = content
    for path in sorted(folder.glob("??/*.so")):
        found[f"{_CPP}/{path.parent.name}/{path.name}"] = path.read_bytes()
    return found


def take_graphs(folder: Path) -> dict[str, bytes]:
    """Return the whole graphs in inductor's cache folder *folder*."""
    paths = (path for kind in _GRAPH_FOLDERS for path in sorted((folder / kind).rglob("*")))
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in paths if path.is_file()
    }


def is_graph(name: str) -> bool:
    """Return whether the member *name* of a bundle belongs to a whole graph."""
    return name.partition("/")[0] in _GRAPH_FOLDERS


def place(members: Iterable[tuple[str, bytes]], device: torch.device) -> int:
    """Put *members* where inductor looks for them on *device*, and return how many were not there.

    What is there already stays.

    Raises:
        OSError: a folder cannot be written; what was placed before is whole.
        ValueError: something is neither a kernel nor a graph; likewise.
    """
    roots = _roots(device)
    placed = 0
    for name, content in members:
        kind, _, rest = name.partition("/")
        if kind not in roots or not rest:
            raise ValueError(f"{name} is neither a kernel nor a graph")
        path = roots[kind] / rest
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        is_group = path.name.startswith(_GROUP)
        _put(path, _with_folder(content, path.parent) if is_group else content)
        placed += 1
    return placed


def compiled_since(began: float, names: Iterable[str], device: torch.device) -> tuple[str, ...]:
    """Return what was compiled into the caches for *device* since *began*, as `time.time` counts.

    What is among *names* is left out. An entry of Triton's is named by its folder.
    """
    roots = _roots(device)
    known = {name.rpartition("/")[0] if name.startswith(_TRITON) else name for name in names}
    made = {
        f"{_TRITON}/{path.parent.name}"
        for path in roots[_TRITON].glob("*/*")
        if (path.name.startswith(_GROUP) or path.suffix == ".so") and _is_newer(path, began)
    }
    made |= {
        f"{_CPP}/{path.parent.name}/{path.name}"
        for path in roots[_CPP].glob("??/*.so")
        if _is_newer(path, began)
    }
    return tuple(sorted(made - known))


def _roots(device: torch.device) -> dict[str, Path]:
    folder = Path(cache_dir())
    index = device.index if device.index is not None else 0
    return {
        _TRITON: Path(triton_cache_dir(index)),
        _CPP: folder,
        **{kind: folder / kind for kind in _GRAPH_FOLDERS},
    }


def _without_folder(group: bytes) -> bytes:
    """Return a group with the names of those files of it that are kept, without their folder."""
    names = [name for name in json.loads(group)["child_paths"] if Path(name).suffix in _LOADED]
    return json.dumps({"child_paths": {name: name for name in sorted(names)}}).encode()


def _with_folder(group: bytes, folder: Path) -> bytes:
    value = json.loads(group)
    if type(value) is not dict or type(value.get("child_paths")) is not dict:
        raise ValueError("a group of files that names none")
    names = [Path(name).name for name in value["child_paths"]]
    return json.dumps({"child_paths": {name: str(folder / name) for name in names}}).encode()


def _put(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _is_newer(path: Path, began: float) -> bool:
    try:
        return path.stat().st_mtime >= began
    except OSError:  # removed meanwhile
        return False
