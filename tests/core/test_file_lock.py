"""The lock of a file: one holder at a time, whoever holds it, and no link in its place."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_processes import run_python

from warmup.core.files import LOCKS_FOLDER, lock_path, locked

# Locks a file as a user of the group sys.argv[2], with the strictest umask.
AS_OTHER = """
import os, sys
from pathlib import Path
import filelock
from warmup.core.files import locked
os.umask(0o077)
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(*[54321] * 3)
with locked(Path(sys.argv[1]), 1):
    print("held")
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder on the way to which every user may enter; those of pytest are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        (Path(name) / "tables").mkdir()
        yield Path(name) / "tables"


def test_a_second_holder_waits_and_is_told_the_lock_file(tmp_path: Path) -> None:
    """While a lock is held, another one for the same file ends with a TimeoutError."""
    path = tmp_path / "t.json"
    with (
        locked(path, 1),
        pytest.raises(
            TimeoutError, match=r"another writer held .*\.locks/t\.json\.lock for 0.05 s"
        ),
        locked(path, 0.05),
    ):
        pass
    with locked(path, 0.05):
        pass


def test_lock_files_are_as_open_as_the_folder_of_the_file(tmp_path: Path) -> None:
    """By any umask, and without the sticky bit, by which one user's lock file excludes others."""
    before = os.umask(0o077)
    try:
        for mode, folder_mode, file_mode in (
            (0o755, 0o755, 0o644),
            (0o2775, 0o2775, 0o666),
            (0o1777, 0o777, 0o666),
        ):
            folder = tmp_path / f"{mode:o}"
            folder.mkdir()
            folder.chmod(mode)
            with locked(folder / "t.json", 1):
                found = [
                    stat.S_IMODE(path.stat().st_mode)
                    for path in (folder / LOCKS_FOLDER, lock_path(folder / "t.json"))
                ]
            assert found == [folder_mode, file_mode], f"{mode:o}"
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_users_that_may_write_the_folder_may_lock(public: Path) -> None:
    """A user of the folder's group gets the lock whose file root made, and one of no such file."""
    os.chown(public, -1, 12345)
    public.chmod(0o775)
    before = os.umask(0o077)
    try:
        with locked(public / "t.json", 1):
            pass
    finally:
        os.umask(before)
    for name, group, held in (
        ("t.json", 12345, True),
        ("u.json", 12345, True),
        ("v.json", 1, False),
    ):
        done = run_python("-c", AS_OTHER, str(public / name), str(group))
        assert (done.stdout == "held\n") is held, (name, done.stderr)
        assert held or "PermissionError" in done.stderr, done.stderr


def test_a_link_in_place_of_a_lock_is_an_error_and_stays(tmp_path: Path) -> None:
    """Nothing is made where a link leads that another user laid."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / LOCKS_FOLDER).symlink_to("../b")
    with pytest.raises(NotADirectoryError, match="no folder"), locked(tmp_path / "a" / "t.json", 1):
        pass
    (tmp_path / "b" / LOCKS_FOLDER).mkdir()
    lock_path(tmp_path / "b" / "t.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "b" / "t.json", 1):
        pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        [LOCKS_FOLDER, LOCKS_FOLDER, "a", "b", "t.json.lock"]
    )
