"""`ImportedEntry` and `Unmapped`: what became of each entry of an imported file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warmup.core.error_text import shown
from warmup.core.imported_config import ImportedConfig
from warmup.table.imported_json import MAX_ORIGIN

IMPORTED_REASON: Final = "imported"  # of a problem in a misses document
_NAME_LETTERS: Final = 160


@dataclass(frozen=True, slots=True)
class ImportedEntry:
    """A problem that another tool tuned, by its key, and the kernel that the tool chose.

    ``config`` is None where the entry does not say enough to make the kernel; ``lacks`` says what.
    """

    key: str
    origin: str
    config: ImportedConfig | None
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class Unmapped:
    """An entry that is no problem of a table: what it is, and why.

    Where ``is_file``, it is a whole file of a folder, which could not be read.
    """

    origin: str
    what: str
    reason: str
    is_file: bool = False


Entry = ImportedEntry | Unmapped


def origin_of(file: str, place: object = "") -> str:
    """Return *file* with the *place* in it, printable and short enough for a table.

    A long name of a file keeps its end.
    """
    end = f":{place}" if place != "" else ""
    name = shown(file)
    return f"{name[-_NAME_LETTERS:]}{shown(end)[: MAX_ORIGIN - _NAME_LETTERS]}"
