"""`FolderFiles`: a store of rows in a local folder, locked while a writer changes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmup.core.error_text import remedy_for
from warmup.core.errors import StoreError
from warmup.core.file_lock import locked
from warmup.core.files import open_regular, replace_bytes

_STORE_LOCK_TIMEOUT_S: Final = 60
_LOCKED_FILE: Final = "warmup-store.json"
_HALF_WRITTEN: Final = ".tmp"


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files below *folder*. Hidden files are temporary, or locks, and are not listed.

    The lock is the kernel's, on a file in the folder: it ends with the process that holds it.
    """

    folder: Path
    location: str

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        return sorted(name for name in self._walk() if not name.rpartition("/")[2].startswith("."))

    def is_empty(self) -> bool:
        """Return whether there is no file, or no such folder."""
        try:
            return not any(not name.startswith(".") for name in os.listdir(self.folder))  # noqa: PTH208
        except FileNotFoundError:
            return True
        except (OSError, ValueError) as error:
            raise self._error("cannot be listed", error) from error

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the first *limit* + 1 bytes of the file *name*; None where it is not."""
        try:
            with open_regular(self.folder / name) as file:
                return file.read(limit + 1)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._error(f"{name} cannot be read", error) from error

    def write(self, name: str, content: bytes) -> None:
        """Write *content* to the file *name* and to the disk, and make the folders above it."""
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_bytes(path, content)
        except (OSError, ValueError) as error:
            raise self._error(f"{name} cannot be written", error) from error

    def remove(self, name: str) -> None:
        """Remove the file *name*, if it is there, and its folder if that is empty then."""
        path = self.folder / name
        try:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other files are in it
                path.parent.rmdir()
        except (OSError, ValueError) as error:
            raise self._error(f"{name} cannot be removed", error) from error

    def remove_leftovers(self) -> int:
        """Remove the temporary files of killed writers; the caller holds the lock."""
        leftovers = [
            name
            for name in self._walk()
            if name.rpartition("/")[2].startswith(".") and name.endswith(_HALF_WRITTEN)
        ]
        for name in leftovers:
            self.remove(name)
        return len(leftovers)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder, which is made.

        Raises:
            StoreError: another writer held the lock for a minute, or there can be no lock.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            target = Path(os.path.realpath(self.folder)) / _LOCKED_FILE
            with contextlib.ExitStack() as stack:
                stack.enter_context(locked(target, _STORE_LOCK_TIMEOUT_S))
                yield
        except TimeoutError as error:
            raise StoreError(
                self.location,
                error.strerror or str(error),
                "wait for the other writer to finish",
            ) from None
        except (OSError, ValueError) as error:
            if isinstance(error, StoreError):
                raise
            raise self._error("cannot be locked", error) from error

    def _walk(self) -> Iterator[str]:
        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):  # removed by another writer
                raise self._error("cannot be listed", error) from error

        for folder, _, files in os.walk(self.folder, onerror=refuse):
            below = Path(folder).relative_to(self.folder)
            yield from ((below / name).as_posix() for name in files)

    def _error(self, what: str, error: OSError | ValueError) -> StoreError:
        problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
        advice = remedy_for(error, "name a folder that this user can read and write")
        return StoreError(self.location, f"{what}: {problem}", advice)
