"""`read_json`: untrusted JSON as the `msgspec.Struct` that its caller declares.

All else is refused, and so are names that an object has twice, NaN and deep nesting. Errors of
msgspec lack the names of a dict's members, which are looked up here, so that each error has the
file and the JSON pointer of the value.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import (
    Annotated,
    Any,
    Final,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from warmup.core.errors import TableFormatError

_T = TypeVar("_T")
_Raws = dict[str, msgspec.Raw]
_MOST_ELEMENTS_BYTES: Final = 1024 * 1024  # of an array in which the place of an error is looked up
_MOST_BYTES: Final = 32 * 1024 * 1024  # of a dict
_PLACE: Final = re.compile(r"(?s)(.*) - at (`key` in )?`\$([^`]*)`")
_PART: Final = re.compile(r"\.([A-Za-z_]\w*)|\[([0-9]+)\]|\[\.\.\.\]")
_UNKNOWN: Final = re.compile(r"(?s)Object contains unknown field `(.*)`")
_MISSING: Final = re.compile(r"(?s)Object missing required field `(.*)`")
_BYTE: Final = re.compile(r"(.*) \(byte ([0-9]+)\)")
_CONSTANT: Final = re.compile(rb"NaN|-?Infinity")
_TYPES: Final = re.compile(r"`([a-z |]+)`")
_TYPE_NAMES: Final = {
    "object": "an object",
    "array": "an array",
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
}
# In JSON without whitespace: a string, with the colon behind it where it is a name, or a bracket.
_TOKEN: Final = re.compile(rb'("(?:[^"\\]|\\.)*")(:?)|[{}]')


def repetition(name: str) -> str:
    """Return what is wrong with an object that has *name* twice."""
    return f"the name {name[:80]!r} appears twice in one object"


def read_json(data: bytes, expected: type[_T], path: str) -> tuple[_T, bytes]:
    """Return *data* as an *expected*, and without whitespace; *path* is for error texts only.

    A TableFormatError: it is not JSON, has a name twice, or is not as *expected* declares.
    """
    value = decode_json(data, expected, path)
    compact = msgspec.json.format(data, indent=-1)
    name = repeated_name(compact)
    if name is not None:
        raise TableFormatError(path, "", repetition(name))
    return value, compact


def decode_json(data: bytes, expected: type[_T], path: str) -> _T:
    """Return *data* as an *expected*, or a TableFormatError; the last of equal names counts."""
    try:
        return msgspec.json.decode(data, type=expected)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _check_utf8(data, path)
        if isinstance(error, msgspec.ValidationError):
            _refuse(data, expected, path, str(error))
        is_deep = isinstance(error, RecursionError)
        reason = "nested too deeply" if is_deep else _syntax_error(data, str(error))
        raise TableFormatError(path, "", reason) from None


def repeated_name(compact: bytes) -> str | None:
    """Return a name that an object in *compact*, JSON without whitespace, has twice, if any."""
    seen: list[set[bytes | str]] = []
    for token in _TOKEN.finditer(compact):
        if token[0] == b"{":
            seen.append(set())
        elif token[0] == b"}":
            seen.pop()
        elif token[2]:
            quoted = token[1]
            name = msgspec.json.decode(quoted, type=str) if b"\\" in quoted else quoted[1:-1]
            name = name if isinstance(name, str) else name.decode()
            if name in seen[-1]:
                return name
            seen[-1].add(name)
    return None


def pointer_of(*parts: str | int) -> str:
    """Return the JSON pointer (RFC 6901) of the member or element behind *parts*."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def check_texts(value: Any, path: str, *parts: str | int) -> None:
    """Raise a TableFormatError, with a pointer below *parts*, for text that is not printable."""
    for place, text in _texts(msgspec.to_builtins(value), parts):
        if not text.isprintable():
            raise TableFormatError(path, pointer_of(*place), "expected printable characters")


def _texts(value: Any, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield (*place, name), name
            yield from _texts(inner, (*place, name))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _texts(inner, (*place, number))


def _syntax_error(data: bytes, problem: str) -> str:
    match = _BYTE.fullmatch(problem)
    if match is None:
        return problem[0].lower() + problem[1:] if data.strip() else "empty"
    at = int(match[2])
    constant = _CONSTANT.match(data, at - (data[at - 1 : at] == b"-"))
    if constant is not None:
        return f"{constant[0].decode()} is not a JSON number"
    before = data[:at]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return f"{match[1].replace('JSON is malformed', 'not JSON')} (line {line}, column {column})"


def _check_utf8(data: bytes, path: str) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise TableFormatError(path, "", f"not UTF-8 (byte {error.start})") from None


def _refuse(data: bytes, expected: Any, path: str, message: str) -> NoReturn:
    match = _PLACE.fullmatch(message)
    reason, is_key, place = (match[1], bool(match[2]), match[3]) if match else (message, False, "")
    try:
        parts = _parts(data, expected, place, is_key=is_key)
    except RecursionError:
        raise TableFormatError(path, "", "nested too deeply") from None
    except msgspec.MsgspecError as error:  # behind the first error the text is no JSON
        raise TableFormatError(path, "", _syntax_error(data, str(error))) from None
    if unknown := _UNKNOWN.fullmatch(reason):
        parts.append(unknown[1])
        reason = "unknown field"
    elif missing := _MISSING.fullmatch(reason):
        reason = f"missing: {missing[1]}"
    else:
        reason = _in_words(reason)
    raise TableFormatError(path, pointer_of(*parts) or "/", reason)


def _in_words(message: str) -> str:
    text = _TYPES.sub(
        lambda match: " or ".join(_TYPE_NAMES.get(each, each) for each in match[1].split(" | ")),
        message.replace(", got `", ", found `"),
    )
    return text[0].lower() + text[1:]


def _parts(data: bytes, kind: Any, place: str, *, is_key: bool) -> list[str | int]:
    parts: list[str | int] = []
    for part in _PART.finditer(place):
        kind = _container(kind)
        if part[1]:
            parts.append(part[1])
            data = bytes(msgspec.json.decode(data, type=_Raws)[part[1]])
            kind = get_type_hints(kind, include_extras=True)[part[1]]
        elif part[2]:
            parts.append(int(part[2]))
            if "[...]" not in place[part.end() :]:
                others = _PART.finditer(place, part.end())
                return [*parts, *(each[1] or int(each[2]) for each in others)]
            if len(data) > _MOST_ELEMENTS_BYTES:
                return parts
            data = bytes(msgspec.json.decode(data, type=list[msgspec.Raw])[int(part[2])])
            kind = get_args(kind)[0]
        else:
            kind = get_args(kind)[1]
            if len(data) > _MOST_BYTES:
                return parts
            members = msgspec.json.decode(data, type=_Raws)
            unfit = (name for name, raw in members.items() if not _fits(bytes(raw), kind))
            if (name := next(unfit, None)) is None:
                return parts
            parts.append(name)
            data = bytes(members[name])
    if is_key:
        names = msgspec.json.decode(data, type=_Raws)
        expected = get_args(_container(kind))[0]
        parts += [name for name in names if not _fits(msgspec.json.encode(name), expected)][:1]
    return parts


def _fits(data: bytes, kind: Any) -> bool:
    try:
        msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        return False
    return True


def _container(kind: Any) -> Any:
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in {Union, types.UnionType}:
        kind = next(each for each in map(_container, get_args(kind)) if _holds(each))
    return kind


def _holds(kind: Any) -> bool:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return is_struct or get_origin(kind) in {dict, list, tuple}
