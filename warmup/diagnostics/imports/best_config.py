"""`read_best_configs`: the launch configs that inductor chose for generated kernels.

A ``.best_config`` file has a config, but not the kernel that it is for: its name is a hash. The
kernel's source stands in the same folder, as one of some Python files, and is read as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmup.core.errors import ProblemError, SettingsError
from warmup.core.imported_config import ImportedConfig
from warmup.core.rows import MAX_INT, Family, KwargValue, Winner
from warmup.diagnostics.imports.entry import Entry, ImportedEntry, Unmapped, origin_of
from warmup.diagnostics.imports.json_file import json_in, text_in

BEST_CONFIG_SUFFIX: Final = ".best_config"
_MAX_CONFIG_BYTES: Final = 64 * 1024
_MAX_KERNEL_BYTES: Final = 1024 * 1024
_MAX_KERNEL_FILES: Final = 256  # of one folder
_NOT_CONFIG: Final = frozenset(
    {
        *("configs_hash", "found_by_coordesc", "time_taken_ms", "triton_cache_hash"),
        *("num_consumer_groups", "num_buffers_warp_spec"),
    }
)
_HEURISTIC_LINE: Final = re.compile(r"^@triton_heuristics\.([a-z_]{1,64})\($", re.MULTILINE)
_KERNEL_DEF: Final = re.compile(r"^def ([A-Za-z_][A-Za-z0-9_]{0,199})\(", re.MULTILINE)
_KERNEL_CONSTANTS: Final = re.compile(r"([A-Z][A-Z0-9_]{0,31}) ?: ?tl\.constexpr")
_FIXED_CONSTANT: Final = re.compile(
    r"^    ([A-Z][A-Z0-9_]{0,31})(?:: tl\.constexpr)? = ", re.MULTILINE
)
# What source that inductor did not write may raise while it is read, of which no kernel is made.
_NO_KERNEL_ERRORS: Final = (
    *(ProblemError, SyntaxError, ValueError, TypeError, AttributeError),
    *(RecursionError, MemoryError),  # of `ast.literal_eval`, for deep nesting
)
_GRAPH_CALL: Final = "async_compile.triton("  # of a graph's code, which quotes its kernels whole
_CONFIG_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class _SourceKernel:
    """A generated kernel: its key, its heuristic, and the blocks that its config has."""

    key: str
    heuristic: str
    blocks: frozenset[str]


def read_best_configs(folder: Path, paths: Sequence[Path]) -> Iterator[Entry]:
    """Yield an entry for each of *paths*, ``.best_config`` files of the one *folder*.

    Where not every kernel of the folder was read, none is known to be the only fitting one.
    """
    kernels, unread = _kernels(folder)
    for path in paths:
        origin = origin_of(path.name)
        try:
            kwargs = _config(path)
        except (ProblemError, SettingsError) as error:
            yield Unmapped(origin, "a launch config", str(error))
            continue
        blocks = frozenset(name for name in kwargs if name.endswith("BLOCK"))
        fitting = [kernel for kernel in kernels if kernel.blocks == blocks]
        if len(fitting) != 1 or unread:
            yield Unmapped(
                origin,
                f"a launch config of {', '.join(sorted(blocks)) or 'no blocks'}",
                unread
                or (
                    f"{len(fitting)} kernels in its folder have these blocks, and it names none"
                    if fitting
                    else "no kernel in its folder has these blocks"
                ),
            )
            continue
        winner = Winner(Family.LAUNCH, fitting[0].heuristic, tuple(sorted(kwargs.items())))
        yield ImportedEntry(fitting[0].key, origin, ImportedConfig(winner, origin))


def _config(path: Path) -> dict[str, KwargValue]:
    """Return the config in the file *path*.

    Raises:
        ProblemError: it is not of the form that torch 2.11 to 2.15 writes.
        SettingsError: it cannot be read.
    """
    document = json_in(path, _MAX_CONFIG_BYTES)
    if not isinstance(document, dict) or not {"num_warps", "num_stages"} <= document.keys():
        raise ProblemError("not the form that torch 2.11 to 2.15 writes")
    if "extra_options" in document:
        raise ProblemError("it has extra_options, which are for another backend")
    config: dict[str, KwargValue] = {}
    for name, value in _tuned(document).items():
        if _CONFIG_NAME.fullmatch(name) is None or type(value) is not int or abs(value) > MAX_INT:
            raise ProblemError(f"{name[:40]!r} has no number")
        config[name] = value
    return config


def _tuned(document: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in document.items() if name not in _NOT_CONFIG}


def _kernels(folder: Path) -> tuple[list[_SourceKernel], str]:
    """Return the generated kernels whose source stands in *folder*, each key once.

    The text says why not all of them were read; it is empty where they were.
    """
    paths = sorted(folder.glob("*.py"))
    if len(paths) > _MAX_KERNEL_FILES:
        return [], f"its folder has more than {_MAX_KERNEL_FILES} Python files"
    found: dict[str, _SourceKernel] = {}
    for path in paths:
        try:
            kernel = _kernel(text_in(path, _MAX_KERNEL_BYTES))
        except SettingsError as error:
            return [], f"a Python file in its folder cannot be read: {error}"
        except _NO_KERNEL_ERRORS:
            continue  # no generated kernel: wrappers and templates stand here too
        if kernel is not None:
            found[kernel.key] = kernel
    return list(found.values()), ""


def _kernel(source: str) -> _SourceKernel | None:
    from warmup.inductor.launch.kernels import read_kernel

    heuristic, name = _HEURISTIC_LINE.search(source), _KERNEL_DEF.search(source)
    if heuristic is None or name is None or _GRAPH_CALL in source:
        return None
    read = read_kernel(name[1], source)
    if read is None:
        return None
    problem, _, code = read
    arguments = code.partition("):\n")[0]
    # A persistent reduction fixes its block in its body; it is no part of the config.
    fixed = set(_FIXED_CONSTANT.findall(code))
    blocks = {block for block in _KERNEL_CONSTANTS.findall(arguments) if block.endswith("BLOCK")}
    return _SourceKernel(problem.key, heuristic[1], frozenset(blocks - fixed))
