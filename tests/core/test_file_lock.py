"""The lock of a file: one holder at a time, and no lock file afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.core.file_lock import lock_path, locked

HOLD = """
import sys, time
from pathlib import Path
from warmup.core.file_lock import locked
with locked(Path(sys.argv[1]), 30):
    print("held", flush=True)
    time.sleep(60)
"""
# Adds 1 to a number in a file, which two processes at once would do wrongly.
COUNT = """
import sys
from pathlib import Path
from warmup.core.file_lock import locked
path = Path(sys.argv[1])
# go
for _ in range(100):
    with locked(path, 60):
        path.write_text(str(int(path.read_text()) + 1))
"""


def test_the_lock_file_is_gone_afterwards(tmp_path: Path) -> None:
    """The lock file stands beside the file while it is locked, and never longer."""
    with locked(tmp_path / "t.json", 1):
        assert [path.name for path in tmp_path.iterdir()] == [".t.json.lock"]
    assert list(tmp_path.iterdir()) == []


def test_the_lock_file_is_gone_after_an_error(tmp_path: Path) -> None:
    """A writer that fails leaves no lock file."""
    with pytest.raises(RuntimeError), locked(tmp_path / "t.json", 1):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_second_holder_waits_and_then_gives_up(tmp_path: Path) -> None:
    """While a lock is held, another one for the same file ends with a TimeoutError."""
    with (
        locked(tmp_path / "t.json", 1),
        pytest.raises(TimeoutError, match="another writer held"),
        locked(tmp_path / "t.json", 0.05),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    """After SIGKILL of the holder the next one gets the lock, and removes the lock file."""
    path = tmp_path / "t.json"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert lock_path(path).exists()
    with locked(path, 1):
        pass
    assert list(tmp_path.iterdir()) == []


def test_no_two_processes_hold_a_lock(
    tmp_path: Path, run_together: Callable[..., list[subprocess.Popen[str]]]
) -> None:
    """Four processes that lock a file a hundred times each, and remove its lock file as often."""
    (tmp_path / "n").write_text("0")
    for process in run_together(COUNT, [[str(tmp_path / "n")]] * 4):
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    found = (tmp_path / "n").read_text(), [path.name for path in tmp_path.iterdir()]
    assert found == ("400", ["n"])


def test_no_two_threads_hold_a_lock(tmp_path: Path) -> None:
    """Threads of one process exclude each other too."""
    inside: list[int] = []
    most: list[int] = []

    def hold() -> None:
        for _ in range(50):
            with locked(tmp_path / "t.json", 60):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (200, 1)


def test_a_lock_file_of_another_mode_is_no_obstacle(tmp_path: Path) -> None:
    """Every user that may write the folder may lock: the lock file's mode is 0666, by any umask."""
    before = os.umask(0o077)
    try:
        with locked(tmp_path / "t.json", 1):
            mode = lock_path(tmp_path / "t.json").stat().st_mode
    finally:
        os.umask(before)
    assert mode & 0o777 == 0o666


def test_a_lock_file_that_is_no_file_is_an_error_and_stays(tmp_path: Path) -> None:
    """A FIFO or a link with the name of the lock file is neither used nor removed."""
    os.mkfifo(tmp_path / ".a.lock")
    (tmp_path / ".b.lock").symlink_to("elsewhere")
    for name in ("a", "b"):
        with (
            pytest.raises(OSError, match=r"no regular file|symbolic links"),
            locked(tmp_path / name, 1),
        ):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.lock", ".b.lock"]
