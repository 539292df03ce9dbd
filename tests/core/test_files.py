"""Outputs are replaced whole, links and what is no regular file stay, and a lock has one holder."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from other_users import OTHER_USER, needs_root, public_folder, run_as_other

from warmup.core.errors import SettingsError
from warmup.core.files import (
    LOCKS_FOLDER,
    lock_path,
    locked,
    open_regular,
    other_writers,
    replace_bytes,
    write_output,
)


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a/file")
    (tmp_path / "chain").symlink_to("link")
    for text in (b"new", b"newer"):
        replace_bytes(tmp_path / "chain", text)
        assert (tmp_path / "a" / "file").read_bytes() == text
    assert [(tmp_path / name).readlink() for name in ("link", "chain")] == [
        Path("a/file"),
        Path("link"),
    ]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


@needs_root
def test_what_is_no_file_is_refused_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk, a socket, a folder, and a FIFO that nobody reads; no removal takes a device."""
    monkeypatch.chdir(tmp_path)
    os.mknod("disk", 0o666 | stat.S_IFBLK, os.makedev(7, 4000))
    os.mknod("null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mkfifo("fifo")
    Path("folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name in ("disk", "socket", "fifo", "", ".", "/", "folder"):
            path = Path(name)
            mode = path.lstat().st_mode
            said = "it is a folder" if stat.S_ISDIR(mode) else "no regular file"
            with pytest.raises(OSError, match="nobody reads from it" if name == "fifo" else said):
                replace_bytes(path, b"x")
            assert path.lstat().st_mode == mode, name
    replace_bytes(Path("null"), b"x")
    assert stat.S_ISCHR(Path("null").lstat().st_mode)
    # What may never end is not read either.
    for path in (Path("fifo"), Path("/dev/zero")):
        with pytest.raises(OSError, match="no regular file"):
            open_regular(path)


def test_a_fifo_is_written_into(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    got: list[bytes] = []
    # Opened for both, so that there is a reader before the writer comes.
    reader = os.open(tmp_path / "fifo", os.O_RDWR)
    content = b"x" * 100_000

    def drain() -> None:
        while sum(map(len, got)) < len(content):
            got.append(os.read(reader, 1 << 16))

    thread = threading.Thread(target=drain)
    thread.start()
    replace_bytes(tmp_path / "fifo", content)
    thread.join(timeout=30)
    os.close(reader)
    assert (b"".join(got), stat.S_ISFIFO((tmp_path / "fifo").lstat().st_mode)) == (content, True)


def test_stdout_in_a_file_is_written_into(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where stdout is a file, its file is added to and not replaced under the process's feet."""
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        tmp_path = tmp_path_factory.mktemp("case")
        code = (
            "import sys; from pathlib import Path; from warmup.core.files import replace_bytes\n"
            "print('before', flush=True)\nreplace_bytes(Path(sys.argv[1]), b'output\\n')\n"
        )
        with (tmp_path / "out").open("ab") as out:
            number = (tmp_path / "out").stat().st_ino
            subprocess.run([sys.executable, "-c", code, name], stdout=out, check=True, timeout=60)
        found = (tmp_path / "out").stat().st_ino, (tmp_path / "out").read_text()
        assert found == (number, "before\noutput\n"), name


@needs_root
def test_a_file_keeps_its_mode_and_owner(tmp_path: Path) -> None:
    """A file that nobody may write stays as it is, for root too."""
    path = tmp_path / "file"
    for mode in (0o600, 0o640, 0o664, 0o755, 0o444):
        path.write_text("old")
        path.chmod(mode)
        if mode == 0o444:
            with pytest.raises(PermissionError, match="the file is read-only"):
                replace_bytes(path, b"new")
        else:
            replace_bytes(path, b"new")
        expected = "old" if mode == 0o444 else "new"
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (expected, mode)
    path.chmod(0o600)
    os.chown(path, OTHER_USER, OTHER_USER + 1)
    replace_bytes(path, b"new")
    facts = path.stat()
    assert (facts.st_uid, facts.st_gid) == (OTHER_USER, OTHER_USER + 1)
    assert stat.S_IMODE(facts.st_mode) == 0o600


def test_leftovers_of_killed_writers_are_removed_and_no_others(tmp_path: Path) -> None:
    """The next writer removes temporary files that no process has locked, of this output only.

    A link is none.
    """
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".t.json.linkedto.tmp").symlink_to("mine")
    names = [".t.json.abcdefgh.tmp", ".t.json.zyxwvuts.tmp", ".u.json.abcdefgh.tmp", ".t.json.tmp"]
    for name in names:
        (tmp_path / name).write_text("part")
    with (tmp_path / names[1]).open("ab") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)  # as the writer that is alive
        replace_bytes(tmp_path / "t.json", b"{}")
    left = [*names[1:], "t.json", "mine", ".t.json.linkedto.tmp"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(left)
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_file_that_another_writer_took_for_left_over_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other has locked it to remove it: the output is written by way of another file."""
    real, taken = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if not taken:
            (name,) = tmp_path.glob(".t.json.*.tmp")
            taken.append((name, os.open(name, os.O_RDWR)))
            real(taken[0][1], fcntl.LOCK_EX)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    replace_bytes(tmp_path / "t.json", b"{}")
    ((name, other),) = taken
    os.close(other)
    assert ((tmp_path / "t.json").read_bytes(), name.exists()) == (b"{}", True)


def test_an_error_is_one_printable_line_with_advice_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to do about a full disk, or a limit, is not to make a folder writable."""
    with pytest.raises(SettingsError) as caught:
        write_output(tmp_path / "no\n\x1b[31m" / ("x" * 100_000), "x", "--out")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    for number, advice in {
        errno.ENOSPC: "free space or inodes on its filesystem",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
        errno.EROFS: "not mounted read-only",
        errno.EACCES: "name a file that can be written",
    }.items():

        def refuse(descriptor: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(SettingsError) as caught:
            write_output(tmp_path / "f", "x", "--out")
        assert caught.value.args[1].endswith(advice)


@needs_root
def test_who_else_can_write_is_seen(tmp_path: Path) -> None:
    """Owner, group, mode and folder of a file count; in a sticky folder only owners replace."""
    folder = tmp_path / "folder"
    file, link = folder / "file", tmp_path / "link"
    link.symlink_to("folder/file")
    folder.mkdir()
    file.write_text("")
    for folder_mode, file_mode, owners, expected in (
        (0o755, 0o644, (0, 0, 0), ""),
        (0o755, 0o664, (0, 0, 0), ""),
        (0o755, 0o666, (0, 0, 0), "every user can write the file"),
        (0o777, 0o644, (0, 0, 0), f"every user can write its folder {folder}"),
        (0o1777, 0o644, (0, 0, 0), ""),
        (0o755, 0o644, (OTHER_USER, 0, 0), f"the file belongs to user {OTHER_USER}"),
        (0o755, 0o664, (0, 77, 0), "group 77 can write the file"),
        (0o755, 0o644, (0, 77, 0), ""),
        (0o755, 0o644, (0, 0, OTHER_USER), f"its folder {folder} belongs to user {OTHER_USER}"),
    ):
        os.chown(file, *owners[:2])
        os.chown(folder, owners[2], owners[2])
        file.chmod(file_mode)
        folder.chmod(folder_mode)
        for path in (file, link):
            said = "; ".join(writer.way for writer in other_writers(path))
            assert said == expected, (folder_mode, file_mode, owners, path)
    with public_folder() as public:  # a user's own file below folders of root's
        (public / "mine").mkdir()
        (public / "mine" / "file").write_text("")
        for path in (public / "mine", public / "mine" / "file"):
            os.chown(path, OTHER_USER, OTHER_USER)
        code = "print(files.other_writers(Path(sys.argv[1])))"
        assert run_as_other(code, public / "mine" / "file") == "()\n"


def test_a_second_holder_waits_and_learns_the_lock_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    said = r"another writer held .*\.locks/t\.json\.lock for 0.05 s"
    with locked(path, 1), pytest.raises(TimeoutError, match=said), locked(path, 0.05):
        pass
    with locked(path, 0.05):
        pass


@needs_root
def test_users_that_may_write_the_folder_may_lock(tmp_path: Path) -> None:
    """By any umask, and without the sticky bit, by which one lock file excludes other users."""
    lock = "try:\n    with files.locked(Path(sys.argv[1]), 1): print('held')\n"
    lock += "except PermissionError: print('refused')"
    before = os.umask(0o077)
    try:
        for mode, folder_mode, file_mode in (
            (0o755, 0o755, 0o644),
            (0o2775, 0o2775, 0o666),
            (0o1777, 0o777, 0o666),
        ):
            path = tmp_path / f"{mode:o}" / "t.json"
            path.parent.mkdir()
            path.parent.chmod(mode)
            with locked(path, 1):
                places = path.parent / LOCKS_FOLDER, lock_path(path)
                found = [stat.S_IMODE(place.stat().st_mode) for place in places]
            assert found == [folder_mode, file_mode], f"{mode:o}"
        with public_folder() as public:
            folder = public / "tables"
            folder.mkdir()
            os.chown(folder, -1, 12345)
            folder.chmod(0o775)
            with locked(folder / "t.json", 1):
                pass
            for name, group, said in (
                ("t.json", 12345, "held\n"),
                ("u.json", 12345, "held\n"),
                ("v.json", 1, "refused\n"),
            ):
                assert run_as_other(lock, folder / name, group=group) == said, name
    finally:
        os.umask(before)


def test_a_link_in_place_of_a_lock_is_an_error_and_stays(tmp_path: Path) -> None:
    """Nothing is made where a link leads that another user laid."""
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    (a / LOCKS_FOLDER).symlink_to("../b")
    with pytest.raises(NotADirectoryError, match="no folder"), locked(a / "t.json", 1):
        pass
    (b / LOCKS_FOLDER).mkdir()
    lock_path(b / "t.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), locked(b / "t.json", 1):
        pass
    names = sorted(path.name for path in tmp_path.rglob("*"))
    assert names == [LOCKS_FOLDER, LOCKS_FOLDER, "a", "b", "t.json.lock"]
