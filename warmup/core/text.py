"""`shown`, `one_line` and `remedy_for`: texts of errors that are safe and short to print."""

from __future__ import annotations

import errno
from typing import Final

_MAX_FIRST_LINE: Final = 300
_MAX_ERROR_LINE: Final = 4000
_LINE_END: Final = 500  # of a long line, in which the advice stands
_MAX_TEXT_SHOWN: Final = 600
# What to do about an error of the system; any other has the advice of its caller.
_REMEDIES: Final = {
    errno.ENOSPC: "free space or inodes on its filesystem",
    errno.EDQUOT: "free space within your quota",
    errno.EFBIG: "raise the limit of the file size (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this machine",
    errno.ENOMEM: "free memory",
    errno.EROFS: "name a file on a filesystem that is not mounted read-only",
    errno.EIO: "check the disk",
    errno.ESTALE: "mount its filesystem again",
}


def remedy_for(error: OSError | ValueError, otherwise: str) -> str:
    """Return what to do about *error*: *otherwise*, unless the path is not to blame."""
    number = error.errno if isinstance(error, OSError) else None
    return otherwise if number is None else _REMEDIES.get(number, otherwise)


def problem_in(error: Exception) -> str:
    """Return what *error* is about: the system's text, without its number and path, or its own."""
    return getattr(error, "strerror", None) or str(error)


def printable(text: str) -> str:
    """Return *text* with every character escaped that could move a cursor or break a line."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def shown(text: object) -> str:
    """Return *text*, such as a path, in printable characters; a long one without its middle."""
    return _shortened(printable(str(text)), _MAX_TEXT_SHOWN, _MAX_TEXT_SHOWN // 2)


def one_line(error: BaseException | str) -> str:
    """Return the text of *error* in one line of printable characters, at most 4000 of them.

    The middle of a longer text is left out, since what to do stands at its end.
    """
    return _shortened(printable(" ".join(str(error).split())), _MAX_ERROR_LINE, _LINE_END)


def _shortened(text: str, limit: int, end: int) -> str:
    if len(text) <= limit:
        return text
    gap = f" ... ({len(text) - limit} characters) ... "
    return f"{text[: limit - end]}{gap}{text[len(text) - end :]}"


def first_line(error: BaseException | str) -> str:
    """Return the type of *error* and the first line of its text, at most 300 characters of it."""
    text = (str(error).splitlines() or [""])[0][:_MAX_FIRST_LINE]
    return f"{type(error).__name__}: {text}"


def sentence(*parts: object) -> str:
    """Return the *parts* that are not empty, such as a problem and its remedy, as one text."""
    return "; ".join(str(part) for part in parts if part)


# `counted`: a number with its noun, for people.


def counted(count: int, noun: str) -> str:
    """Return *count* and *noun*, in the plural unless there is one: ``2 rows``, ``1 miss``."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


# Units of memory: `MIB` and `GIB`, in bytes.

MIB: Final = 2**20
GIB: Final = 2**30


# `__version__`: the version of warmup, for modules that must not import the root package.

__version__: Final = "0.1.0"
