"""`RemoteFiles`: a store of rows at a URL, such as ``s3://bucket/rows``, read by fsspec.

An object store writes an object whole or not at all and has no locks. None are needed: no file is
changed, two writers never write one name with two contents, and a file is removed only when all of
its rows are in another file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from warmup.core.error_text import first_line
from warmup.core.errors import SettingsError, StoreError

_MAX_FILES: Final = 1_000_000
_Returned = TypeVar("_Returned")


class RemoteFiles:
    """The files below the URL *location*.

    Raises:
        SettingsError: fsspec, or the package that it needs for this URL, is not installed.
        StoreError: the URL cannot be opened.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        try:
            import fsspec
        except ImportError:
            raise SettingsError(
                f"--store {location} needs fsspec", "pip install 'inductor-warmup[store]'"
            ) from None
        try:
            self._files, self._root = fsspec.url_to_fs(location, use_listings_cache=False)
        except ImportError as error:
            raise SettingsError(f"--store {location}: {error}", "install that package") from error
        except ValueError as error:
            raise SettingsError(f"--store {location}: {error}", "name a folder or a URL") from error
        self._root = self._root.rstrip("/")

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        nothing: list[str] = []
        found = self._try("cannot be listed", self._find, nothing)
        if len(found) > _MAX_FILES:
            raise StoreError(self.location, f"more than {_MAX_FILES} files", "name a smaller store")
        start = len(self._root) + 1
        return sorted(path[start:] for path in found if path.startswith(f"{self._root}/"))

    def is_empty(self) -> bool:
        """Return whether there is no file."""
        return not self.names()

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the first *limit* + 1 bytes of the file *name*; None where it is not."""
        path = self._path(name)
        return self._try(
            f"{name} cannot be read",
            lambda: bytes(self._files.cat_file(path, start=0, end=limit + 1)),
            None,
        )

    def write(self, name: str, content: bytes) -> None:
        """Write *content* to the file *name*; no bucket is made."""
        path = self._path(name)

        def put() -> None:
            try:
                self._files.pipe_file(path, content)
            except FileNotFoundError:  # a filesystem with folders, or there is no such bucket
                if not self._files.exists(self._root.partition("/")[0] or "/"):
                    raise
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._files.pipe_file(path, content)

        self._try(f"{name} cannot be written", put)

    def remove(self, name: str) -> None:
        """Remove the file *name*, if it is there."""
        path = self._path(name)
        self._try(f"{name} cannot be removed", lambda: self._files.rm_file(path), None)

    def remove_leftovers(self) -> int:
        """Return 0: an upload that was cut off is no file."""
        return 0

    def locked(self) -> contextlib.nullcontext[None]:
        """Hold nothing: see above."""
        return contextlib.nullcontext()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _find(self) -> list[str]:
        self._files.invalidate_cache()
        return list(self._files.find(self._root))

    def _try(self, what: str, call: Callable[[], _Returned], *missing: _Returned) -> _Returned:
        """Return what *call* returns; *missing*, where it is given, if there is no such file.

        Raises:
            StoreError: the file system failed.
        """
        try:
            return call()
        except FileNotFoundError as error:
            if missing:
                return missing[0]
            raise self._error(what, error) from error
        except Exception as error:  # each file system raises errors of its own
            raise self._error(what, error) from error

    def _error(self, what: str, error: Exception) -> StoreError:
        return StoreError(
            self.location,
            f"{what}: {first_line(error)}",
            "see that the URL, the credentials and the network are right; nothing was lost",
        )
