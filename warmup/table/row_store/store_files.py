"""`StoreFiles`: what a store of rows needs from the place where its files are; `open_files`."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from warmup.table.row_store.folder_files import FolderFiles

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://.*", re.DOTALL)


class StoreFiles(Protocol):
    """Files by names such as ``groups/a/b.rows``, each written whole or not at all.

    Every method raises `StoreError` where the place
    cannot be read or written.
    """

    @property
    def location(self) -> str:
        """The place as the user named it."""
        ...

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        ...

    def is_empty(self) -> bool:
        """Return whether there is no file, or no such place."""
        ...

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the content of the file *name*, at most *limit* + 1 bytes; None where it is not.

        A file that is longer than *limit* is not whole then, and the caller refuses it.
        """
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write *content* to the file *name*; the folders above it are made."""
        ...

    def remove(self, name: str) -> None:
        """Remove the file *name*, if it is there."""
        ...

    def remove_leftovers(self) -> int:
        """Remove what killed writers left half-written, under the lock; return how many files."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Hold the place for this writer alone, where the place has locks."""
        ...


def open_files(location: str) -> StoreFiles:
    """Return the files at *location*: a folder, ``file://`` and a folder, or a URL for fsspec.

    Raises:
        SettingsError: fsspec, or the package that it needs for this URL, is not installed.
    """
    found = _URL.fullmatch(location)
    if found is None:
        return FolderFiles(Path(location), location)
    if found[1].lower() in ("file", "local"):
        return FolderFiles(Path(location.partition("://")[2]), location)
    from warmup.table.row_store.remote_files import RemoteFiles

    return RemoteFiles(location)
