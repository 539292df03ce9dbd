"""`read_histogram`: how often each size of a dim was requested, from a file or standard input.

The text is not trusted: lines, sizes and counts have limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeGuard

from warmup.buckets.bucket import MAX_SIZE
from warmup.core.errors import SettingsError

MAX_LINES: Final = 10_000_000
MAX_LINE_BYTES: Final = 256
MAX_SIZES: Final = 100_000
MAX_REQUESTS: Final = 10**12
_MAX_COUNT_DIGITS = 13
_SHOWN_LETTERS = 40
_MAX_COLUMNS = 2
_HEADERS = {"size", "size,count", '"size"', '"size","count"'}
_LINES = 'write SIZE, SIZE,COUNT or {"size": SIZE, "count": COUNT} on each line'


def read_histogram(source: str | Path | BinaryIO) -> dict[int, int]:
    """Return the count of each size in *source*, the path of a file or a binary stream.

    Each line is ``SIZE``, ``SIZE,COUNT`` or ``{"size": SIZE, "count": COUNT}``. A missing count
    is 1, counts of the same size add up, and sizes with the count 0 are left out. The first line
    may be the header ``size`` or ``size,count``. Blank lines are skipped. Memory is bounded by the
    limits of this module; the file is read line by line.

    Raises:
        SettingsError: the file cannot be read, a line has another form, a limit is exceeded, or no
            size has a count above 0; the text names the line.
    """
    if not isinstance(source, (str, Path)):
        return _add_up(source, "standard input")
    try:
        with Path(source).open("rb") as stream:
            return _add_up(stream, str(source))
    except OSError as error:
        raise SettingsError(
            f"--histogram {source}: {error.strerror}", "name a readable file, or - for stdin"
        ) from error


def check_histogram(counts: Mapping[int, int]) -> dict[int, int]:
    """Return *counts*, a histogram from a program, without the sizes whose count is 0.

    Raises:
        SettingsError: a size or a count is invalid, there are too many sizes, or none is left.
    """
    for size, count in counts.items():
        if not _is_within(size, 1, MAX_SIZE) or not _is_within(count, 0, MAX_REQUESTS):
            raise SettingsError(
                f"the histogram's {_quoted(size)}: {_quoted(count)} is no size with its count",
                f"sizes are 1 to {MAX_SIZE}, counts 0 to {MAX_REQUESTS}",
            )
    positive = {size: count for size, count in counts.items() if count}
    if not positive:
        raise SettingsError("the histogram has no size", "count at least one request")
    if len(positive) > MAX_SIZES:
        raise SettingsError(
            f"the histogram has more than {MAX_SIZES} sizes", "round sizes up before counting"
        )
    return positive


def _add_up(stream: BinaryIO, name: str) -> dict[int, int]:
    counts: dict[int, int] = {}
    may_be_header = True
    for number, line in enumerate(_lines(stream, name), start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if text and not (may_be_header and text.lower().replace(" ", "") in _HEADERS):
                size, count = _object(text) if text.startswith("{") else _columns(text)
                if count:
                    counts[size] = counts.get(size, 0) + count
        except ValueError as error:
            problem = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
            raise SettingsError(f"--histogram {name}, line {number}: {problem}", _LINES) from error
        may_be_header = may_be_header and not text
        if len(counts) > MAX_SIZES:
            raise SettingsError(
                f"--histogram {name}, line {number}: more than {MAX_SIZES} different sizes",
                "round sizes up before counting",
            )
    if not counts:
        raise SettingsError(f"--histogram {name}: it has no size", _LINES)
    return counts


def _lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES + 1), b""), start=1):
        if number > MAX_LINES:
            raise SettingsError(
                f"--histogram {name}: more than {MAX_LINES} lines",
                "count equal sizes first, as SIZE,COUNT",
            )
        if len(line) > MAX_LINE_BYTES:
            raise SettingsError(
                f"--histogram {name}, line {number}: longer than {MAX_LINE_BYTES} bytes", _LINES
            )
        yield line


def _columns(text: str) -> tuple[int, int]:
    cells = text.split(",")
    if len(cells) > _MAX_COLUMNS:
        raise ValueError(f"{len(cells)} columns instead of size,count")
    return _checked(*(_number(cell.strip()) for cell in cells))


def _number(cell: str) -> object:
    if cell.startswith('"') and cell.endswith('"'):
        cell = cell[1:-1]
    if cell.isascii() and cell.removeprefix("-").isdigit() and len(cell) <= _MAX_COUNT_DIGITS:
        return int(cell)
    return cell


def _object(text: str) -> tuple[int, int]:
    try:
        fields = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"{_quoted(text)} is not JSON: {error.msg}") from error
    if "size" not in fields or not fields.keys() <= {"size", "count"}:
        raise ValueError(f"{_quoted(text)} has other fields than size and count")
    return _checked(**fields)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _checked(size: object, count: object = 1) -> tuple[int, int]:
    if not _is_within(size, 1, MAX_SIZE):
        raise ValueError(f"the size {_quoted(size)} is not an integer from 1 to {MAX_SIZE}")
    if not _is_within(count, 0, MAX_REQUESTS):
        raise ValueError(f"the count {_quoted(count)} is not an integer from 0 to {MAX_REQUESTS}")
    return size, count


def _is_within(value: object, low: int, high: int) -> TypeGuard[int]:
    return type(value) is int and low <= value <= high  # bool is a subclass of int


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."
