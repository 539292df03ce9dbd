"""`locked`: one writer of a file at a time, by a lock file beside it that is gone afterwards."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_FIRST_POLL_S: Final = 0.01
_SLOWEST_POLL_S: Final = 0.1


def lock_path(path: Path) -> Path:
    """Return the path of the lock file of *path*."""
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock of the file at *path*, which need not exist; its folder does.

    The kernel gives up the lock of a process that ends in whatever way. The lock file is removed
    when the lock is given up; that of a killed process is used and removed by the next writer.
    Every user that may write the folder can lock it. *path* is without links, so that a file has
    one lock under all its names.

    Raises:
        TimeoutError: another writer held the lock for *timeout_s* seconds.
        OSError: the lock file cannot be made or opened.
    """
    name = lock_path(path)
    deadline, pause = time.monotonic() + timeout_s, _FIRST_POLL_S
    while (descriptor := _try_lock(name)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"another writer held {name} for {timeout_s} s")
        time.sleep(pause)
        pause = min(2 * pause, _SLOWEST_POLL_S)
    try:
        yield
    finally:
        # Removed while it is locked: who waits for it finds that its name is gone, and starts anew.
        with contextlib.suppress(OSError):  # another user's, in a folder with the sticky bit
            name.unlink()
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have the descriptor too
        os.close(descriptor)


def _try_lock(name: Path) -> int | None:
    """Return a descriptor of the lock file *name*, locked; None when another writer has it."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = _open(name, flags)
    except FileNotFoundError:
        return None  # removed by the writer before
    try:
        _check_regular(descriptor, name)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(descriptor, name):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _check_regular(descriptor: int, name: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, f"the lock file {name} is no regular file")


def _open(name: Path, flags: int) -> int:
    try:
        return os.open(name, flags | os.O_RDWR)
    except FileNotFoundError:
        pass
    except PermissionError:  # another user's; reading is enough, except on network filesystems
        return os.open(name, flags | os.O_RDONLY)
    try:
        descriptor = os.open(name, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(name, flags | os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, 0o666)  # the permissions of its folder decide who may write
    return descriptor


def _is_at(descriptor: int, name: Path) -> bool:
    """Whether *name* is still the file of *descriptor*: the writer before may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), name.lstat())
    except FileNotFoundError:
        return False
