"""`replace_bytes` and `write_output`: the one way in which warmup writes files.

A regular file is replaced whole, so that a reader sees the old file or the new one and never a
part. Links are followed and stay. A character device or a FIFO, such as ``/dev/null`` or
``/dev/stdout``, is written into. A folder, a block device, a socket and a file without write
permission are refused. `other_writers` says who else may change a file that is read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from warmup.core.errors import SettingsError
from warmup.core.text import problem_in, remedy_for, shown

READ_ONLY: Final = "the file is read-only"
NEW_FILE_MODE: Final = 0o644  # a server may run as another user than the build
_MAX_LINKS: Final = 40  # as in the kernel
_NAMED_PIPES_AND_CHARACTERS: Final = (stat.S_ISCHR, stat.S_ISFIFO)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a path leads to: ``path`` without links, ``found`` if there is a file, or a stream.

    A stream is written into: a character device, a FIFO, or what a process has open as a
    descriptor; its ``path`` is as it was named.
    """

    path: Path
    found: os.stat_result | None = None
    is_stream: bool = False


def destination_of(path: Path) -> Destination:
    """Return where *path* leads to, as the kernel lets this process follow its links.

    An OSError: it may not be written: a folder, a block device, a socket, or a file without write
    permission, for the superuser too.
    """
    try:
        found = path.stat()
    except FileNotFoundError:  # a link may lead to a file that does not exist yet
        return Destination(Path(os.path.realpath(path)))
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if any(matches(found.st_mode) for matches in _NAMED_PIPES_AND_CHARACTERS):
        return Destination(path, found, is_stream=True)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    if _is_descriptor(path):
        return Destination(path, found, is_stream=True)
    if not found.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, READ_ONLY, str(path))
    return Destination(Path(os.path.realpath(path)), found)


def regular_file_of(path: Path) -> Path:
    """Return the path, without links, of the regular file at *path*, or to be; or an OSError."""
    destination = destination_of(path)
    if destination.is_stream:
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return destination.path


def write_output(path: Path, content: str | bytes, option: str) -> None:
    """Put *content*, text in UTF-8, at *path*, as `replace_bytes` does.

    A SettingsError, which names *option*: it cannot be written.
    """
    try:
        replace_bytes(path, content.encode() if isinstance(content, str) else content)
    except (OSError, ValueError) as error:
        raise _refusal(f"{option} {shown(path)}", "written", "file", error) from error


def make_folder(folder: Path, option: str) -> None:
    """Make *folder* and those above it; a SettingsError, which names *option*, where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _refusal(f"{option} {shown(folder)}", "made", "folder", error) from error


def _refusal(place: str, verb: str, what: str, error: OSError | ValueError) -> SettingsError:
    # A ValueError is about a NUL character in the path.
    advice = remedy_for(error, f"name a {what} that can be written")
    return SettingsError(f"{place}: cannot be {verb}: {problem_in(error)}", advice)


def replace_bytes(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write *content*, whole or in pieces, to *path*.

    A regular file is replaced by one with the same mode and, where the system allows it, the same
    owner and group; a new file has the mode 0644. Temporary files of writers that were killed are
    removed. After an OSError the old file is unchanged and no temporary file is left.
    """
    pieces = (content,) if isinstance(content, bytes) else content
    destination = destination_of(path)
    if destination.is_stream:
        _write_into(destination.path, pieces)
        return
    target = destination.path
    _remove_leftovers(target)
    descriptor, temporary = _make_temporary(target)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(pieces)
            file.flush()
            _take_over(file.fileno(), destination.found)
            os.fsync(file.fileno())
            Path(temporary).replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
    sync_folder(target.parent)


def probe_folder(path: Path) -> None:
    """Remove what killed writers left; an OSError where no file could be written to *path*."""
    target = destination_of(path).path
    _remove_leftovers(target)
    descriptor, temporary = _make_temporary(target)
    os.close(descriptor)
    Path(temporary).unlink()


def open_regular(path: Path, *, follows_links: bool = True) -> BinaryIO:
    """Open the regular file at *path* for reading: no device and no FIFO, which may never end.

    A link at *path* is an error unless *follows_links*. An OSError or a ValueError, where no path
    has such a character.
    """
    # O_NONBLOCK: without waiting for the writer of a FIFO.
    more = os.O_NONBLOCK | (0 if follows_links else os.O_NOFOLLOW)
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | more))  # noqa: SIM115  Path.open has no opener
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return file


def create_like(path: Path, pattern: Path) -> int:
    """Open the regular file at *path* for appending, or an OSError, and return its descriptor.

    A new file has the mode, the owner and the group of the file *pattern*.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor, is_new = os.open(path, flags), False
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, NEW_FILE_MODE)
        is_new = True
    try:
        if is_new:
            _take_over(descriptor, pattern.stat())
        elif not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))  # noqa: TRY301  to close it
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sync_folder(folder: Path) -> None:
    """Sync the entries of *folder* to the disk, on filesystems that can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_descriptor(path: Path) -> bool:
    """Whether *path* leads through ``/proc/PID/fd``, as ``/dev/stdout`` and ``/dev/fd/1`` do."""
    # Replacing the file behind it would leave the process with the old one open.
    for _ in range(_MAX_LINKS):
        folder = Path(os.path.realpath(path.parent))
        if folder.parts[:2] == ("/", "proc") and folder.name == "fd":
            return True
        if not path.is_symlink():
            return False
        path = folder / path.readlink()
    return False


def _write_into(path: Path, pieces: Iterable[bytes]) -> None:
    # O_NONBLOCK: opening a FIFO that nobody reads is an error, and no endless wait.
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads from it", str(path)) from error
        raise
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(pieces)


def _make_temporary(target: Path) -> tuple[int, str]:
    while True:
        descriptor, name = tempfile.mkstemp(
            prefix=f".{target.name}.", suffix=".tmp", dir=target.parent
        )
        if _lock_if_free(descriptor) and os.path.lexists(name):
            return descriptor, name
        os.close(descriptor)  # taken for left over before it was locked


def _lock_if_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # without locks, nothing is taken for left over either
        return not isinstance(error, BlockingIOError)
    return True


def _remove_leftovers(target: Path) -> None:
    """Remove the temporary files beside *target* whose writers have ended: nobody locks them."""
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.????????.tmp"):
        with contextlib.suppress(OSError):  # removed in the meantime, or another user's
            descriptor = os.open(leftover, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    leftover.unlink()
            finally:
                os.close(descriptor)


def _take_over(descriptor: int, found: os.stat_result | None) -> None:
    if found is None:
        os.fchmod(descriptor, NEW_FILE_MODE)
        return
    made = os.fstat(descriptor)
    if made.st_gid != found.st_gid:
        with contextlib.suppress(PermissionError):  # only members of a group may give files to it
            os.fchown(descriptor, -1, found.st_gid)
    if made.st_uid != found.st_uid:
        with contextlib.suppress(PermissionError):  # only the superuser may
            os.fchown(descriptor, found.st_uid, -1)
    os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & 0o777)


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


# `locked`: one writer of a file at a time, by a lock file beside it; `DeviceLock`: one measurement.

LOCKS_FOLDER: Final = ".locks"
_POLL_S: Final = 0.02
_CREATION_S: Final = 0.2  # another user's new folder or lock file has its mode by then


def lock_path(path: Path) -> Path:
    return path.parent / LOCKS_FOLDER / f"{path.name}.lock"


@contextlib.contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock of the file at *path*, which need not exist; its folder does.

    The lock file stays, empty, as does its folder, which has the permissions and the group of the
    folder of *path*: every user that may write there can lock. The kernel gives up the lock of a
    process that ends in whatever way. *path* is without links, so that a file has one lock under
    all its names. A TimeoutError: another writer held the lock for *timeout_s* seconds.
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
    # The sticky bit is left out: with it a lock file excludes all but the user who locked first.
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
class DeviceLock:
    """The right to measure, of one thread of one process at a time: a lock beside *path*."""

    path: Path
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _depth: int = 0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn and hold it, or a TimeoutError after a day; reentrant for a thread."""
        with self._lock, contextlib.ExitStack() as stack:
            if not self._depth:
                stack.enter_context(locked(self.path, _LONGEST_TURN_S))
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1


@contextlib.contextmanager
def temporary_folder(prefix: str, advice: str = "") -> Iterator[Path]:
    """Make a folder whose name begins with *prefix*, removed afterwards.

    A file that a compile worker of torch still writes meanwhile stays, and ends nothing. Raises a
    SettingsError with *advice* where no folder can be made.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    except OSError as error:
        raise SettingsError(
            f"no temporary folder can be made: {error.strerror}",
            remedy_for(error, f"set TMPDIR to a writable folder{advice}"),
        ) from error
    with folder as name:
        yield Path(name)
