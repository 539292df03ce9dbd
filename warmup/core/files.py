"""`replace_bytes`, `replace_text`: atomic writes, so that a reader never sees part of a file.

`open_regular`: files that end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO


def replace_text(path: Path, text: str) -> None:
    """Write *text* in UTF-8 to *path*, as `replace_bytes` does."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Write *content* to *path*, mode 0644; a reader sees the whole old file or the whole new one.

    Raises:
        OSError: the file cannot be written; the old one is unchanged and no temporary file is left.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # a server may run as another user than the build
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
    with contextlib.suppress(OSError):  # some filesystems cannot sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def open_regular(path: Path) -> BinaryIO:
    """Open the regular file at *path* for reading: no device and no FIFO, which may never end.

    Raises:
        OSError: it cannot be opened, or is no regular file.
        ValueError: *path* has a character that no path has.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115  Path.open has no opener
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return file


def _open_at_once(path: str, flags: int) -> int:
    """Open *path* without waiting for the writer of a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)
