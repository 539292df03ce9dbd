"""`read_autotune_cache`: the times that inductor keeps of the selections it measured.

They are in one JSON file below ``cache/`` of inductor's cache folder, by op, operands, precision of
float32 products and choice. A choice has a name and a hash; the config of a Triton template is in
its source, which the folder has too, under the hash.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from warmup.core.error_text import shown
from warmup.core.errors import ProblemError, SettingsError
from warmup.core.imported_config import ImportedConfig, noted_us
from warmup.core.rows import Winner
from warmup.diagnostics.imports.entry import Entry, ImportedEntry, Unmapped, origin_of
from warmup.diagnostics.imports.json_file import text_in
from warmup.diagnostics.imports.kernel_config import library_winner, template_winner
from warmup.diagnostics.imports.operand_shape import SCALAR_TEXT, OperandShape, key_of

_CACHED_NODE: Final = r"\('[a-z]{1,16}', 'torch\.[a-z0-9_]{1,32}'(?:, [0-9]{1,10}){1,13}\)"
_INPUTS: Final = re.compile(rf"\[({_CACHED_NODE}(?:, {_CACHED_NODE}){{0,7}})\](?:_[0-9]{{1,10}})?")
_ONE_NODE_TEXT: Final = re.compile(r"\('[a-z]+', '(torch\.\w+)'((?:, [0-9]+)+)\)")
_FLOAT32_PRECISIONS: Final = {"highest": "ieee", "high": "tf32"}
_ALPHA_OR_BETA: Final = re.compile(rf"-(alpha|beta)=(?:({SCALAR_TEXT})(?=-))?")
_FUSED_WITH: Final = re.compile(r"-attr='(\w{1,32})'")
_MODULE_STEM: Final = re.compile(r"c[a-z2-7]{1,80}")
_BLOCK_LINE: Final = re.compile(
    r"^ {0,16}(BLOCK_[MNK]|GROUP_M) ?: ?tl\.constexpr = ([0-9]{1,9})$", re.MULTILINE
)
_LAUNCH_LINE: Final = re.compile(r"^ {0,16}(num_stages|num_warps)=([0-9]{1,9}),?$", re.MULTILINE)
_MAX_SOURCE_BYTES: Final = 1024 * 1024


def is_autotune_cache(document: object) -> bool:
    """Whether *document* is what inductor writes of the selections it measured."""
    return isinstance(document, dict) and {"system", "cache"} <= document.keys()


def read_autotune_cache(
    document: Mapping[str, Any], file: str, folder: Path | None
) -> Iterator[Entry]:
    """Yield an entry for each selection of *document*, which was in *file* of the cache *folder*.

    Without *folder* no template has a config.
    """
    number = 0
    for op, inputs, precision, times in _selections(document["cache"]):
        number += 1
        origin = origin_of(file, f"selection {number}")
        what = f"{shown(op)} {shown(inputs)}"
        if times is None:
            yield Unmapped(origin, what, "not the form that torch 2.11 to 2.15 writes")
            continue
        try:
            key = _key_of(op, inputs, precision, list(times))
        except ProblemError as error:
            yield Unmapped(origin, what, str(error))
            continue
        yield _entry(key, origin, times, folder)


def _selections(cache: Any) -> Iterator[tuple[str, str, str, dict[str, float] | None]]:
    """Yield op, operands, precision and times by choice; None for times of another form."""
    for op, by_inputs in _members(cache):
        for inputs, by_precision in _members(by_inputs):
            for precision, times in _members(by_precision):
                is_times = isinstance(times, dict) and all(
                    type(value) in (int, float) for value in times.values()
                )
                yield op, inputs, precision, times if is_times else None


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    yield from value.items() if isinstance(value, dict) else [("", None)]


def _key_of(op: str, inputs: str, precision: str, choices: list[str]) -> str:
    match = _INPUTS.fullmatch(inputs) if len(inputs) <= _MAX_SOURCE_BYTES else None
    if match is None:
        raise ProblemError("the operands are not in the form that torch 2.11 to 2.15 writes")
    operands = []
    for dtype, numbers in _ONE_NODE_TEXT.findall(match[1]):
        values = [int(word) for word in numbers.split(", ") if word]
        dims = (len(values) - 1) // 2  # sizes, strides and the offset
        operands.append(OperandShape.of(dtype, values[:dims], values[dims : 2 * dims]))
    is_f32 = any(each.dtype == "f32" for each in operands)
    if is_f32 and precision not in _FLOAT32_PRECISIONS:
        raise ProblemError(f"float32 products of the precision {shown(precision)}")
    if fused := {found[1] for each in choices for found in _FUSED_WITH.finditer(each)} - {"none"}:
        raise ProblemError(f"fused with {', '.join(sorted(fused))}: its scalars are not noted")
    named = [pair for each in choices for pair in _ALPHA_OR_BETA.findall(each)]
    if unread := {name for name, value in named if not value}:
        raise ProblemError(f"{' and '.join(sorted(unread))}: no plain number")
    scalars = {name: float(value) for name, value in named}
    return key_of(op, operands, precision=_FLOAT32_PRECISIONS.get(precision, "ieee"), **scalars)


def _entry(key: str, origin: str, times: Mapping[str, float], folder: Path | None) -> Entry:
    timed = {choice: ms for choice, ms in times.items() if math.isfinite(ms) and ms > 0}
    if not timed:
        return ImportedEntry(key, origin, None, "no choice has a time")
    best = min(timed, key=lambda choice: timed[choice])
    winner = _winner(best, folder)
    if isinstance(winner, str):
        return ImportedEntry(key, origin, None, f"{shown(best.partition('-')[0])}: {winner}")
    library = [ms for choice, ms in timed.items() if library_winner(choice.partition("-")[0])]
    library_us = noted_us(min(library, default=math.nan))
    config = ImportedConfig(winner, origin, noted_us(timed[best]), library_us)
    return ImportedEntry(key, origin, config)


def _winner(choice: str, folder: Path | None) -> Winner | str:
    """Return the kernel of *choice*, a name and a hash, or what is missing."""
    name, _, rest = choice.partition("-")
    library = library_winner(name)
    if library is not None:
        return library
    if not name.startswith("triton_"):
        return "the cache does not give its config"
    if folder is None or _MODULE_STEM.fullmatch(rest) is None:
        return "its source is not beside this file: name inductor's cache folder"
    try:
        source = text_in(folder / rest[1:3] / f"{rest}.py", _MAX_SOURCE_BYTES)
    except SettingsError:
        return "its source is not in the cache folder"
    kwargs = {kwarg: int(value) for kwarg, value in _BLOCK_LINE.findall(source)}
    kwargs |= {kwarg: int(value) for kwarg, value in _LAUNCH_LINE.findall(source)}
    return template_winner(name.removeprefix("triton_"), kwargs)
