"""`RowSegment`: the content of one file of a store, rows with where each was measured.

The file is a text of lines, compressed by DEFLATE, and its name has the SHA-256 of the file and the
number of rows. So a file that is cut off or damaged is known before a line of it is read, and the
same rows are the same file. Lines::

    warmup rows 1
    origin ID TABLE          a table without rows: device, versions, policy, time
    KEY<tab>ROW<tab>ID       sorted; ROW as in a table, without spaces
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import StoreError

MAX_SEGMENT_BYTES: Final = 64 * 2**20
_MAX_TEXT_BYTES: Final = 256 * 2**20
_MOST_ROWS: Final = 200_000  # of a segment; more rows make another one
_MOST_BYTES: Final = 192 * 2**20  # of a segment's text
_FIRST_LINE: Final = b"warmup rows 1\n"
_ORIGIN_WORD: Final = b"origin "
_LEVEL: Final = 6
_SEGMENT_NAME: Final = re.compile(r"([0-9a-f]{64})\.([0-9]{1,9})\.rows")
_ORIGIN_LINE: Final = re.compile(rb"origin ([0-9a-f]{16}) (\{[ -~]*\})")
_UNPACKED_PIECE: Final = 4 * 2**20
_TABS_OF_A_ROW: Final = 2
_REPAIR: Final = "`warmup store gc` sets it aside and keeps what can be read of it"

SEGMENT_SUFFIX: Final = ".rows"
Named = tuple[str, bytes]  # of a file, its name and its content


@dataclass(frozen=True, slots=True)
class RowSegment:
    """Lines of rows, ``KEY<tab>ROW<tab>ID`` each, and the text of each origin by its id."""

    origins: Mapping[bytes, bytes]
    lines: tuple[bytes, ...]


def rows_in_name(name: str) -> int | None:
    """Return how many rows the file *name* has by its name; None where it is no segment's name."""
    found = _SEGMENT_NAME.fullmatch(name)
    return None if found is None else int(found[2])


def write_segments(lines: Iterable[bytes], origins: Mapping[bytes, bytes]) -> Iterator[Named]:
    """Yield the name and the content of each file that *lines*, sorted, make.

    Each file has those of *origins* that its lines name. The same lines make the same files.
    """
    ordered = sorted(set(lines))
    begin = size = 0
    for end, line in enumerate(ordered):
        if end - begin == _MOST_ROWS or (size + len(line) > _MOST_BYTES and end > begin):
            yield _write(ordered[begin:end], origins)
            begin, size = end, 0
        size += len(line) + 1
    if ordered:
        yield _write(ordered[begin:], origins)


def _write(lines: list[bytes], origins: Mapping[bytes, bytes]) -> Named:
    used = sorted({line.rpartition(b"\t")[2] for line in lines})
    head = b"".join(_ORIGIN_WORD + each + b" " + origins[each] + b"\n" for each in used)
    content = zlib.compress(b"".join((_FIRST_LINE, head, b"\n".join(lines), b"\n")), _LEVEL)
    return f"{hashlib.sha256(content).hexdigest()}.{len(lines)}{SEGMENT_SUFFIX}", content


def read_segment(location: str, name: str, content: bytes) -> RowSegment:
    """Return the segment in *content*, the file *name* of the store at *location*.

    Rows are not checked value by value here, but when they are taken.

    Raises:
        StoreError: the file is damaged, cut off or too large, or is no segment.
    """
    path = f"{location}/{name}"
    found = _SEGMENT_NAME.fullmatch(name.rpartition("/")[2])
    if found is None:
        raise StoreError(path, "its name is not that of a file of rows", "remove the file")
    if len(content) > MAX_SEGMENT_BYTES:
        raise StoreError(path, f"larger than {MAX_SEGMENT_BYTES} bytes", "remove the file")
    if hashlib.sha256(content).hexdigest() != found[1]:
        raise StoreError(path, "damaged or cut off: its content is not that of its name", _REPAIR)
    text, is_whole = _unpacked(content)
    segment = _parsed(text) if is_whole else None
    if segment is None or len(segment.lines) != int(found[2]):
        raise StoreError(path, "its content is no rows of this warmup", "remove the file")
    return segment


def salvage(content: bytes) -> RowSegment | None:
    """Return the whole lines in *content*, a segment that was cut off; None without any.

    Of a segment that is damaged elsewhere nothing is taken: its numbers could be others.
    """
    text, is_whole = _unpacked(content)
    if is_whole or not text:
        return None
    found = _parsed(text[: text.rfind(b"\n") + 1])
    return found if found is not None and found.lines else None


def _unpacked(content: bytes) -> tuple[bytes, bool]:
    """Return the text of *content*, as far as it goes, and whether it is whole.

    The text is empty where *content* is damaged before its end.
    """
    engine = zlib.decompressobj()
    pieces: list[bytes] = []
    size, packed = 0, content
    try:
        while packed and not engine.eof:
            pieces.append(engine.decompress(packed, _UNPACKED_PIECE))
            packed = engine.unconsumed_tail
            size += len(pieces[-1])
            if size > _MAX_TEXT_BYTES:
                return b"", False
    except zlib.error:
        return b"", False
    if engine.unused_data:
        return b"", False
    return b"".join(pieces), engine.eof


def _parsed(text: bytes) -> RowSegment | None:
    """Return the segment with *text*; None where it has another form."""
    if not (text.startswith(_FIRST_LINE) and text.endswith(b"\n") and text.isascii()):
        return None
    lines = text[len(_FIRST_LINE) : -1].split(b"\n") if len(text) > len(_FIRST_LINE) else []
    origins: dict[bytes, bytes] = {}
    for count, line in enumerate(lines):
        if not line.startswith(_ORIGIN_WORD):
            lines = lines[count:]
            break
        found = _ORIGIN_LINE.fullmatch(line)
        if found is None:
            return None
        origins[found[1]] = found[2]
    else:
        lines = []
    if text.count(b"\t") != _TABS_OF_A_ROW * len(lines):
        return None
    return RowSegment(origins, tuple(lines))
