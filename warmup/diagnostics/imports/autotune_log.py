"""`read_autotune_log`: the blocks that inductor prints for each selection it measured.

    AUTOTUNE mm(512x640, 640x768)
    strides: [640, 1], [1, 640]
    dtypes: torch.bfloat16, torch.bfloat16
      triton_mm_4 0.0061 ms 100.0% ACC_TYPE='tl.float32', BLOCK_K=64, BLOCK_M=64, ...
      mm 0.0065 ms 93.8%
    SingleProcess AUTOTUNE benchmarking takes 1.2 seconds and ...

Other lines and texts before these, such as times and ranks, are passed over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from warmup.core.error_text import shown
from warmup.core.errors import ProblemError
from warmup.core.imported_config import ImportedConfig, noted_us
from warmup.core.rows import Winner
from warmup.diagnostics.imports.entry import Entry, ImportedEntry, Unmapped, origin_of
from warmup.diagnostics.imports.kernel_config import (
    SPLIT_TEMPLATE,
    library_winner,
    template_winner,
)
from warmup.diagnostics.imports.operand_shape import OperandShape, key_of

_MAX_CHOICES: Final = 10_000
_BLOCK_HEAD: Final = re.compile(r"\bAUTOTUNE ([a-z][a-z0-9_]{0,63})\(([0-9x, ]{1,2000})\)\s*$")
_STRIDES_LINE: Final = re.compile(r"\bstrides: (\[[0-9, \[\]]{1,4000}\])\s*$")
_DTYPES_LINE: Final = re.compile(r"\bdtypes: ([a-z0-9_., ]{1,1000})\s*$")
_CHOICE_LINE: Final = re.compile(
    r"(?:^|\s)([A-Za-z_][A-Za-z0-9_]{0,127}) ([0-9]{1,12}\.[0-9]{1,12}|inf|nan) ms "
    r"(?:[0-9.]{1,16}|inf|nan|<DIVIDED BY ZERO ERROR>)%?(?: (.{0,4000}))?$"
)
_BLOCK_END: Final = re.compile(r"\bAUTOTUNE benchmarking takes\b")
_DESCRIBED_KWARG: Final = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]{0,63})=('[^',]{0,63}'|[^\s,]{1,63})(?:, |$)"
)
_RANK_PREFIX: Final = re.compile(r"\[[A-Za-z_]{0,16}rank[0-9]{1,6}\]|^\[[a-z]{1,16}[0-9]{1,6}\]")
_NUMBERED_NAME: Final = re.compile(r"_[0-9]{1,9}$")
_OTHER_RESULT: Final = "mm_dtype"  # the library's kernel of a product with another result dtype


@dataclass(slots=True)
class _LogBlock:
    """What was read of the block that began in line ``line``."""

    line: int
    op: str
    sizes: str
    strides: str = ""
    dtypes: str = ""
    choices: list[tuple[str, float, str]] = field(default_factory=list)


def read_autotune_log(lines: Iterable[str], file: str) -> Iterator[Entry]:
    """Yield an entry for each block of *lines*, which are those of *file*."""
    open_blocks: dict[str, _LogBlock] = {}  # by rank: ranks write into one log at the same time
    for number, line in enumerate(lines, 1):
        rank = "".join(_RANK_PREFIX.findall(line[:200]))
        if (head := _BLOCK_HEAD.search(line)) is not None:
            if rank in open_blocks:
                yield _entry(open_blocks.pop(rank), file)
            open_blocks[rank] = _LogBlock(number, head[1], head[2])
        elif (block := open_blocks.get(rank)) is None:
            continue
        elif _BLOCK_END.search(line):
            yield _entry(open_blocks.pop(rank), file)
        else:
            _read_line(block, line)
    for block in open_blocks.values():
        yield _entry(block, file)


def _read_line(block: _LogBlock, line: str) -> None:
    """Add what *line* says of *block*; other lines may stand between those of a block."""
    if not block.strides and (strides := _STRIDES_LINE.search(line)) is not None:
        block.strides = strides[1]
    elif not block.dtypes and (dtypes := _DTYPES_LINE.search(line)) is not None:
        block.dtypes = dtypes[1]
    elif block.dtypes and len(block.choices) < _MAX_CHOICES:
        choice = _CHOICE_LINE.search(line.rstrip())
        if choice is not None:
            block.choices.append((choice[1], float(choice[2]), choice[3] or ""))


def _entry(block: _LogBlock, file: str) -> Entry:
    origin = origin_of(file, block.line)
    try:
        key = _key(block)
    except ProblemError as error:
        return Unmapped(origin, f"{block.op}({shown(block.sizes)})", str(error))
    timed = [choice for choice in block.choices if math.isfinite(choice[1])]
    if not timed:
        return ImportedEntry(key, origin, None, "no choice has a time")
    name, best_ms, description = min(timed, key=lambda choice: choice[1])
    winner = _winner(name, description)
    if isinstance(winner, str):
        return ImportedEntry(key, origin, None, f"{name}: {winner}")
    library_ms = [ms for other, ms, _ in timed if library_winner(other) is not None]
    library_us = noted_us(min(library_ms, default=math.nan))
    config = ImportedConfig(winner, origin, noted_us(best_ms), library_us)
    return ImportedEntry(key, origin, config)


def _key(block: _LogBlock) -> str:
    if not block.strides or not block.dtypes:
        raise ProblemError("no strides and dtypes follow, as torch 2.11 and later print them")
    if any(name == _OTHER_RESULT for name, _, _ in block.choices):
        raise ProblemError("the entry does not say the dtype of the result")
    sizes = [_numbers(text, "x") for text in block.sizes.split(", ")]
    strides = [_numbers(text, ",") for text in re.findall(r"\[([0-9, ]*)\]", block.strides)]
    dtypes = block.dtypes.split(", ")
    if not len(sizes) == len(strides) == len(dtypes):
        raise ProblemError("sizes, strides and dtypes are of different operands")
    operands = [OperandShape.of(*each) for each in zip(dtypes, sizes, strides, strict=True)]
    texts = (text for _, _, text in block.choices)
    uses_tf32 = any("ALLOW_TF32=True" in text for text in texts)
    return key_of(block.op, operands, precision="tf32" if uses_tf32 else "ieee")


def _numbers(text: str, separator: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(separator)]
    if not all(part.isdecimal() and len(part) <= len("2147483647") for part in parts):
        raise ProblemError(f"{text[:40]!r} are no sizes")
    return tuple(map(int, parts))


def _winner(name: str, description: str) -> Winner | str:
    """Return the kernel that inductor calls *name* and describes so, or what is missing."""
    library = library_winner(name)
    if library is not None:
        return library
    kwargs = {kwarg: _value(text) for kwarg, text in _DESCRIBED_KWARG.findall(description)}
    if name.startswith(SPLIT_TEMPLATE):
        return template_winner(SPLIT_TEMPLATE, kwargs)
    if name.startswith("cpp_"):
        return "the log does not give the blocks of a C++ template"
    if not name.startswith("triton_"):
        return "it is no kernel that a row can name"
    return template_winner(_NUMBERED_NAME.sub("", name.removeprefix("triton_")), kwargs)


def _value(text: str) -> object:
    return int(text) if text.isdecimal() and len(text) <= len("2147483647") else text.strip("'")
