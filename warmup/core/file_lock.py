"""`locked`: one writer of a file at a time, by a lock file beside it; `Turn`: measuring in turn."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LOCKS_FOLDER: Final = ".locks"
_POLL_S: Final = 0.02
_CREATION_S: Final = 0.2  # another user's new folder or lock file has its mode by then


def lock_path(path: Path) -> Path:
    """Return the path of the lock file of *path*."""
    return path.parent / LOCKS_FOLDER / f"{path.name}.lock"


@contextlib.contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock of the file at *path*, which need not exist; its folder does.

    The lock file stays, empty, as does its folder, which has the permissions and the group of the
    folder of *path*: every user that may write there can lock. The kernel gives up the lock of a
    process that ends in whatever way. *path* is without links, so that a file has one lock under
    all its names.

    Raises:
        TimeoutError: another writer held the lock for *timeout_s* seconds.
        OSError: the lock file cannot be made or opened.
    """
    from filelock import FileLock, Timeout  # 40 ms that readers need not wait for

    name = lock_path(path)
    shared = _make_folder(name.parent) & (stat.S_IWGRP | stat.S_IWOTH)
    lock = FileLock(name, timeout_s, mode=0o666 if shared else 0o644, poll_interval=_POLL_S)
    try:
        try:
            lock.acquire()
        except PermissionError:
            time.sleep(_CREATION_S)
            lock.acquire()
    except Timeout:
        message = f"another writer held {name} for {timeout_s} s"
        raise TimeoutError(errno.ETIMEDOUT, message) from None
    try:
        yield
    finally:
        lock.release()


def _make_folder(folder: Path) -> int:
    """Make the *folder* of lock files, as open as the folder around it, and return its mode.

    The sticky bit is left out: with it a lock file excludes all but the user who locked first.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        around = folder.parent.stat()
        with contextlib.suppress(OSError):  # not a member of the group
            os.chown(folder, -1, around.st_gid)
        with contextlib.suppress(OSError):  # a filesystem without modes
            shutil.copystat(folder.parent, folder)  # access control lists too
            folder.chmod(stat.S_IMODE(around.st_mode) & ~stat.S_ISVTX)
    mode = folder.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{folder}, for lock files, is no folder")
    return mode


_LONGEST_TURN_S: Final = 24 * 3600.0


@dataclass
class Turn:
    """The right to measure, which one thread of one process has at a time; a lock beside *path*.

    The kernel takes it from a process that ends in whatever way.
    """

    path: Path
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _depth: int = 0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn and hold it; a thread that has it takes it again at once.

        Raises:
            TimeoutError: another process held it for a day.
            OSError: the lock cannot be made.
        """
        with self._lock, contextlib.ExitStack() as stack:
            if not self._depth:
                stack.enter_context(locked(self.path, _LONGEST_TURN_S))
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
