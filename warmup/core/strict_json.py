"""`JsonReader` and `parse_json`: JSON from files that are not trusted.

Repeated names, NaN, infinities, integers of more than 18 digits and deep nesting are refused; only
`parse_json` takes NaN and infinities where its caller says so. Time is linear in the text. A
`JsonReader` goes through a document piece by piece, so that its memory is that of the values which
its caller keeps, and never that of the document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn

MAX_VALUE: Final = 256 * 1024  # characters of a value that a `JsonReader` reads at once
_MAX_INTEGER_DIGITS: Final = 18
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NAME: Final = re.compile(r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*')
_AFTER_NAME: Final = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")

# From a text and a position, the JSON value that begins there and the position of its end.
Scan = Callable[[str, int], tuple[Any, int]]


class JsonError(ValueError):
    """A text is not JSON, or is JSON that is refused. Its text says why, and where if it can."""


class _RefusedError(ValueError):
    """A value is refused whose place is unknown."""


def parse_json(text: str, *, has_constants: bool = False) -> object:
    """Return the JSON value in *text*. Memory is up to fifty times that of the text.

    With *has_constants* NaN, Infinity and -Infinity, as Python's json writes them, are numbers.

    Raises:
        JsonError: *text* is not JSON, or is refused.
    """
    try:
        return (_DECODER_OF_CONSTANTS if has_constants else _DECODER).decode(text)
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise JsonError("nested too deeply") from None
    except _RefusedError as error:
        raise JsonError(str(error)) from None


def scanner(object_pairs_hook: Callable[[list[tuple[str, Any]]], Any]) -> Scan:
    """Return a scanner that makes objects by *object_pairs_hook*.

    It takes integers of any length up to Python's own limit, beyond which it raises a ValueError:
    a hook for each integer would take a tenth of the time of a table.
    """
    return json.JSONDecoder(
        object_pairs_hook=object_pairs_hook, parse_constant=_no_constant
    ).raw_decode


def repeated(name: str) -> JsonError:
    """Return the error about an object that has *name* twice."""
    return JsonError(_repetition(name))


class JsonReader:
    """A position in a JSON document that arrives in pieces.

    ``text`` is the part of the document that is in memory and ``at`` the position in it.
    *on_passed*, where given, gets the text of the document from its beginning, in parts that each
    end behind a value, a name or a comma.
    """

    def __init__(
        self, pieces: Iterable[str], on_passed: Callable[[str], None] | None = None
    ) -> None:
        self.text = ""
        self.at = 0
        self._pieces = iter(pieces)
        self._on_passed = on_passed
        self._is_whole = False  # whether the rest of the document is in `text`
        self._lines = 0  # newlines that were passed
        self._column = 0  # characters that were passed since the last of them

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the match of *pattern* at the next value, without going behind it.

        More than `MAX_VALUE` characters of ``text`` are ahead, or the rest of the document.
        """
        self._next()
        return pattern.match(self.text, self.at)

    def is_at_object(self) -> bool:
        """Whether the next value is an object; its `members` may be called then."""
        return self._next() == "{"

    def is_at_array(self) -> bool:
        """Whether the next value is an array; its `elements` may be called then."""
        return self._next() == "["

    def value(self, scan: Scan | None = None) -> Any:
        """Return the next value, which has at most `MAX_VALUE` characters.

        Raises:
            JsonError: there is no value, it is too long, or it is refused.
        """
        self._next()
        try:
            value, end = (scan or _DECODER.raw_decode)(self.text, self.at)
        except json.JSONDecodeError as error:
            if not self._is_whole and error.msg.startswith("Unterminated"):
                self.fail(_TOO_LONG, self.at)
            self.fail(error.msg, error.pos)
        except RecursionError:
            raise JsonError("nested too deeply") from None
        except _RefusedError as error:
            raise JsonError(str(error)) from None
        if end - self.at > MAX_VALUE or (end == len(self.text) and not self._is_whole):
            self.fail(_TOO_LONG, self.at)
        self.at = end
        return value

    def members(self) -> Iterator[str]:
        """Yield each name of the next value, an object; the caller reads the value of each.

        Raises:
            JsonError: the object is not JSON, or has a name twice.
        """
        seen: set[str] = set()
        for _ in self._parts("{", "}"):
            name = self._name()
            if name in seen:
                raise repeated(name)
            seen.add(name)
            yield name

    def elements(self) -> Iterator[int]:
        """Yield the number of each element of the next value, an array; the caller reads each.

        Raises:
            JsonError: the array is not JSON.
        """
        yield from self._parts("[", "]")

    def finish(self) -> None:
        """Check that nothing but whitespace follows.

        Raises:
            JsonError: something does.
        """
        if self._next():
            self.fail("Extra data", self.at)
        self._pass()

    def last(self, length: int) -> str:
        """Return the last characters of the document; the reader is at its end then."""
        text = self.text[-length:]
        for piece in self._pieces:
            text = (text + piece)[-length:]
        return text

    def fail(self, problem: str, at: int) -> NoReturn:
        """Raise a `JsonError` with the line and the column of the position *at*."""
        before = self.text[:at]
        line = self._lines + before.count("\n") + 1
        column = at - before.rfind("\n") if "\n" in before else self._column + at + 1
        raise JsonError(f"{problem} (line {line}, column {column})")

    def _parts(self, opening: str, closing: str) -> Iterator[int]:
        if self._next() != opening:
            self.fail(f"Expecting {opening!r}", self.at)
        self.at += 1
        number = 0
        if self._next() == closing:
            self.at += 1
            return
        while True:
            yield number
            number += 1
            found = self._next()
            if found not in {",", closing}:
                self.fail("Expecting ',' delimiter", self.at)
            self.at += 1
            if found == closing:
                return

    def _name(self) -> str:
        match = _NAME.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return match[1]
        if self._next() != '"':
            self.fail("Expecting property name enclosed in double quotes", self.at)
        name: str = self.value()
        self._next()
        colon = _AFTER_NAME.match(self.text, self.at)
        if colon is None:
            self.fail("Expecting ':' delimiter", self.at)
        self.at = colon.end()
        return name

    def _next(self) -> str:
        """Go to the next character that is no whitespace and return it; empty at the end.

        More than `MAX_VALUE` characters are ahead then, or the rest of the document.
        """
        while True:
            if not self._is_whole and len(self.text) - self.at <= MAX_VALUE:
                self._fill()
            match = _SPACE.match(self.text, self.at)
            assert match is not None
            self.at = match.end()
            if self._is_whole or len(self.text) - self.at > MAX_VALUE:
                return self.text[self.at : self.at + 1]

    def _fill(self) -> None:
        """Drop the text before the position, and have more than `MAX_VALUE` characters."""
        self._pass()
        parts, size = [self.text], len(self.text)
        while size <= MAX_VALUE:
            piece = next(self._pieces, None)
            if piece is None:
                self._is_whole = True
                break
            parts.append(piece)
            size += len(piece)
        self.text = "".join(parts)

    def _pass(self) -> None:
        """Drop the text before the position."""
        passed = self.text[: self.at]
        newlines = passed.count("\n")
        self._lines += newlines
        self._column = (
            len(passed) - passed.rfind("\n") - 1 if newlines else self._column + len(passed)
        )
        if self._on_passed is not None and passed:
            self._on_passed(passed)
        self.text, self.at = self.text[self.at :], 0


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _RefusedError(_repetition(name))
            seen.add(name)
    return members


def _repetition(name: str) -> str:
    return f"the name {name[:80]!r} appears twice in one object"


def _no_constant(name: str) -> NoReturn:
    raise _RefusedError(f"{name} is not a JSON number")


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_INTEGER_DIGITS:
        raise _RefusedError(f"an integer of {len(digits)} digits is out of range")
    return int(digits)


def _decoder(hook: Callable[[list[tuple[str, Any]]], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=hook, parse_constant=_no_constant, parse_int=_bounded_int
    )


_TOO_LONG: Final = f"a value of more than {MAX_VALUE} characters"
_DECODER: Final = _decoder(_unique)
_DECODER_OF_CONSTANTS: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_bounded_int)
