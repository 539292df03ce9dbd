"""The descendants of a process, and turns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from warmup.core.processes import in_turn
from warmup.measuring.machine import descendants_of


def test_children_of_children_count(tmp_path: Path) -> None:
    """Whatever their command is; without /proc no other process is taken for an own one."""
    parents = {10: 1, 11: 10, 12: 11, 13: 1, 14: 13}
    for pid, parent in parents.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b (c) S {parent} 0 0")
    (tmp_path / "15").mkdir()  # it ended meanwhile
    assert descendants_of(10, tmp_path) == {10, 11, 12}
    assert descendants_of(10, tmp_path / "missing") == {10}
    code = "import sys; sys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= descendants_of(os.getpid())
        child.kill()


def test_every_item_is_first_once_and_each_round_has_all() -> None:
    rounds = ["".join(in_turn("abc", number)) for number in range(4)]
    assert rounds == ["abc", "bca", "cab", "abc"]
    assert in_turn([], 5) == []
