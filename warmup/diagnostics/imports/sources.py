"""`read_sources`: the entries of files and folders that other tools wrote, by their form."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from warmup.core.error_text import shown
from warmup.core.errors import SettingsError
from warmup.core.files import open_regular
from warmup.diagnostics.imports.autotune_cache import is_autotune_cache, read_autotune_cache
from warmup.diagnostics.imports.autotune_log import read_autotune_log
from warmup.diagnostics.imports.best_config import BEST_CONFIG_SUFFIX, read_best_configs
from warmup.diagnostics.imports.entry import Entry, Unmapped, origin_of
from warmup.diagnostics.imports.json_file import json_in, unreadable
from warmup.diagnostics.imports.lookup_table import is_lookup_table, read_lookup_table
from warmup.diagnostics.imports.vllm_config import named_values, read_vllm_config

_MAX_LOG_BYTES: Final = 4 * 1024**3
_MAX_LOG_LINE_LETTERS: Final = 64 * 1024
_MAX_FOLDER_FILES: Final = 100_000
_JSON_BEGINS: Final = re.compile(rb"\s*\{")  # logs begin with ``[rank0]:`` or ``[W1123 ...]``
_KNOWN_FORMS: Final = (
    "an autotune log, inductor's cache folder or a file of it, a lookup table of torch or a "
    "config of vLLM"
)


def read_sources(paths: Iterable[Path]) -> Iterator[Entry]:
    """Yield the entries of *paths*, in their order. Nothing in them is executed.

    Raises:
        SettingsError: a path cannot be read, or is of no form that is known.
    """
    for path in paths:
        if path.is_dir():
            yield from _read_folder(path)
        elif path.name.endswith(BEST_CONFIG_SUFFIX):
            yield from read_best_configs(path.parent, [path])
        elif _begins_json(path):
            yield from _read_json(path, path.parent.parent)
        else:
            yield from _read_log(path)


def _begins_json(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return _JSON_BEGINS.match(file.read(1024)) is not None
    except (OSError, ValueError) as error:
        raise unreadable(path, getattr(error, "strerror", None) or str(error)) from error


def _read_json(path: Path, folder: Path | None) -> Iterator[Entry]:
    document = json_in(path)
    if is_autotune_cache(document):
        assert isinstance(document, dict)
        yield from read_autotune_cache(document, path.name[:16], folder)
    elif is_lookup_table(document):
        assert isinstance(document, dict)
        yield from read_lookup_table(document, path.name)
    elif isinstance(document, dict) and named_values(path) is not None:
        yield from read_vllm_config(document, path)
    else:
        raise unreadable(path, f"neither {_KNOWN_FORMS}")


def _read_folder(folder: Path) -> Iterator[Entry]:
    """Yield the entries of inductor's cache *folder*: the files two levels below it at most.

    A file of the cache that cannot be read is an `Unmapped`, and the others are read.

    Raises:
        SettingsError: the folder cannot be read, or is no cache folder of inductor.
    """
    caches = _files(folder / "cache")
    configs: dict[Path, list[Path]] = {}
    for inner in [folder, *_folders(folder)]:
        found = [path for path in _files(inner) if path.name.endswith(BEST_CONFIG_SUFFIX)]
        if found:
            configs[inner] = found
    if not caches and not configs:
        raise unreadable(folder, "no inductor cache folder: no cache/ and no .best_config in it")
    for path in caches:
        try:
            if _begins_json(path):
                yield from _read_json(path, folder)
        except SettingsError as error:
            why = str(error.args[0]).removeprefix(f"{shown(path)}: ")
            yield Unmapped(origin_of(path.name), "a file that was skipped", why, is_file=True)
    for inner, paths in configs.items():
        yield from read_best_configs(inner, paths)


def _files(folder: Path) -> list[Path]:
    return [path for path in _listed(folder) if path.is_file() and not path.is_symlink()]


def _folders(folder: Path) -> list[Path]:
    return [path for path in _listed(folder) if path.is_dir() and not path.is_symlink()]


def _listed(folder: Path) -> list[Path]:
    """Return what stands in *folder*, sorted; nothing where it is no folder."""
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name for entry, _ in zip(entries, range(_MAX_FOLDER_FILES + 1), strict=False)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(folder, error.strerror or str(error)) from error
    if len(names) > _MAX_FOLDER_FILES:
        raise unreadable(folder, f"more than {_MAX_FOLDER_FILES} files in one folder")
    return [folder / name for name in sorted(names)]


def _read_log(path: Path) -> Iterator[Entry]:
    is_empty = True
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open_regular(path))
        if os.fstat(file.fileno()).st_size > _MAX_LOG_BYTES:
            raise unreadable(path, f"larger than {_MAX_LOG_BYTES} bytes")
        if path.name.endswith(".gz"):
            file = cast("BinaryIO", opened.enter_context(gzip.open(file)))
        text = opened.enter_context(io.TextIOWrapper(file, encoding="utf-8", errors="replace"))
        for entry in read_autotune_log(_lines(text, path), path.name):
            is_empty = False
            yield entry
    if is_empty:
        raise SettingsError(
            f"{path}: no AUTOTUNE block",
            f"name {_KNOWN_FORMS}; torch prints the blocks to stderr under max-autotune",
        )


def _lines(text: io.TextIOWrapper, path: Path) -> Iterator[str]:
    """Yield the lines of *text*, a longer one in parts, which are no lines of a block."""
    done = 0
    try:
        while line := text.readline(_MAX_LOG_LINE_LETTERS):
            done += len(line)
            if done > _MAX_LOG_BYTES:
                raise unreadable(path, f"more than {_MAX_LOG_BYTES} letters when unpacked")
            yield line.rstrip("\n")
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, str(error)) from error
