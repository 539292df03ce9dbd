"""`TraceFile`: the events of a trace in Chrome's JSON format, read in pieces, gzipped or not.

A trace may have several hundred megabytes, of which a few are in memory here. What surrounds the
list of events is kept whole.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from warmup.core.error_text import shown
from warmup.core.errors import SettingsError
from warmup.core.files import open_regular

_EVENTS: Final = "traceEvents"
_GZIP: Final = b"\x1f\x8b"
_TRACE_PIECE: Final = 4 * 1024 * 1024
_LARGEST_VALUE: Final = 64 * 1024 * 1024
_OF_NUMBERS: Final = "0123456789+-.eE"
_BLANKS: Final = " \t\r\n"
_NAME_A_TRACE: Final = "name a file that torch.profiler wrote with export_chrome_trace"


class TraceFile:
    """The trace at *path*. `events` reads it from the beginning; ``members`` has the rest then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: dict[str, Any] = {}
        self._decode = json.JSONDecoder().raw_decode
        self._text: IO[str] = io.StringIO()
        self._buffer, self._at, self._before = "", 0, 0

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield each event of the trace, in its order.

        Raises:
            SettingsError: the file cannot be read, or is no trace.
        """
        self.members = {}
        self._buffer, self._at, self._before = "", 0, 0
        try:
            with open_regular(self.path) as raw:
                is_packed = raw.read(len(_GZIP)) == _GZIP
                raw.seek(0)
                plain = gzip.GzipFile(fileobj=raw) if is_packed else raw
                with io.TextIOWrapper(plain, encoding="utf-8", errors="replace") as self._text:
                    yield from self._read()
        except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise SettingsError(
                f"{shown(self.path)}: cannot be read as a trace: {shown(reason)}", _NAME_A_TRACE
            ) from error

    def _read(self) -> Iterator[dict[str, Any]]:
        if self._next() == "[":  # Chrome's other form: the list alone
            yield from self._list()
            return
        self._expect("{")
        has_events = False
        while self._next() != "}":
            name = self._value()
            self._expect(":")
            if name == _EVENTS:
                has_events = True
                yield from self._list()
            else:
                self._next()
                self.members[str(name)] = self._value()
            if self._next() == ",":
                self._at += 1
        if not has_events:
            raise ValueError(f"it has no member {_EVENTS!r}")

    def _list(self) -> Iterator[dict[str, Any]]:
        self._expect("[")
        while (letter := self._next()) != "]":
            if letter == ",":
                self._at += 1
                continue
            event = self._value()
            if isinstance(event, dict):
                yield event
        self._at += 1

    def _value(self) -> Any:
        """Return the JSON value that begins here."""
        while True:
            try:
                value, end = self._decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                place = self._before + error.pos
                if len(self._buffer) - self._at > _LARGEST_VALUE or not self._more():
                    raise ValueError(f"{error.msg} at character {place}") from None
                continue
            is_number = isinstance(value, (int, float))
            length = end - self._at
            if is_number and self._buffer[end : end + 1] in _OF_NUMBERS and self._more():
                continue  # it may go on in this piece
            self._at += length
            return value

    def _next(self) -> str:
        """Return the next character that is no blank, which is not taken."""
        while True:
            while self._at < len(self._buffer):
                letter = self._buffer[self._at]
                if letter not in _BLANKS:
                    return letter
                self._at += 1
            if not self._more():
                raise ValueError(f"it ends at character {self._before + self._at}")

    def _expect(self, letter: str) -> None:
        if (found := self._next()) != letter:
            raise ValueError(
                f"expected {letter!r} and found {found!r} at character {self._before + self._at}"
            )
        self._at += 1

    def _more(self) -> bool:
        piece = self._text.read(_TRACE_PIECE)
        self._before += self._at
        self._buffer, self._at = self._buffer[self._at :] + piece, 0
        return bool(piece)
