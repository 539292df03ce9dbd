"""The descendants of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from warmup.measuring.machine import descendants_of


def test_children_of_children_count(tmp_path: Path) -> None:
    """All that descend from a process are found, whatever its command is called; others are not."""
    parents = {10: 1, 11: 10, 12: 11, 13: 1, 14: 13}
    for pid, parent in parents.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b (c) S {parent} 0 0")
    (tmp_path / "15").mkdir()  # it ended meanwhile
    assert descendants_of(10, tmp_path) == {10, 11, 12}


def test_without_proc_it_is_the_process_alone(tmp_path: Path) -> None:
    """Where nothing can be read, no other process is taken for an own one."""
    assert descendants_of(10, tmp_path / "missing") == {10}


def test_a_real_child_is_found() -> None:
    """A process that this one has started is among its descendants."""
    code = "import sys; sys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= descendants_of(os.getpid())
        child.kill()
