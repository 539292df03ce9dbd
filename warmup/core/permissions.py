"""`other_writers`: who besides this user and the superuser can change or replace a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmup.core.error_text import shown

_SUPERUSER: Final = 0


@dataclass(frozen=True, slots=True)
class OtherWriter:
    """A way in which other users can change a file, and whether every user of the machine can."""

    way: str
    is_everybody: bool = False


def other_writers(path: Path) -> tuple[OtherWriter, ...]:
    """Return the ways in which other users can change or replace the file at *path*.

    Owner, group and mode of the file and of every folder above it count, by the name *path* and
    without links. In a folder with the sticky bit only the owners of a file and of the folder can
    replace the file. A group with the number of the owner is taken for the owner's own. Empty when
    there is no way, or no file.
    """
    named = Path(os.path.abspath(path))  # noqa: PTH100  keeps links, which can be replaced too
    real = Path(os.path.realpath(path))
    try:
        found = [*_writers_of("the file", real.stat(), is_file=True)]
        for folder in dict.fromkeys((*real.parents, *named.parents)):
            what = f"its folder {shown(folder)}"
            found += _writers_of(what, folder.stat(), is_file=False)
    except OSError:
        return ()
    return tuple(found)


def remark_on_writers(path: Path) -> str:
    """Return a sentence with the ways of `other_writers`; empty when there is none."""
    ways = [writer.way for writer in other_writers(path)]
    return f"{shown(path)} can be changed by other users: {'; '.join(ways)}" if ways else ""


def _writers_of(what: str, found: os.stat_result, *, is_file: bool) -> Iterator[OtherWriter]:
    if found.st_uid not in {_SUPERUSER, os.geteuid()}:
        yield OtherWriter(f"{what} belongs to user {found.st_uid}")
    if found.st_mode & stat.S_ISVTX and not is_file:
        return
    if found.st_mode & stat.S_IWOTH:
        yield OtherWriter(f"every user can write {what}", is_everybody=True)
    elif found.st_mode & stat.S_IWGRP and found.st_gid not in {_SUPERUSER, found.st_uid}:
        yield OtherWriter(f"group {found.st_gid} can write {what}")
