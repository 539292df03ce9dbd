"""`descendants_of`: the processes that a process has started, read from Linux's ``/proc``."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from pathlib import Path
from typing import Final

_PARENT_FIELD: Final = 1  # of /proc/PID/stat after the command, which is in brackets


def descendants_of(pid: int, root: Path = Path("/proc")) -> frozenset[int]:
    """Return *pid* and all processes that descend from it; *pid* alone where that is not known."""
    children = defaultdict[int, list[int]](list)
    with contextlib.suppress(OSError):
        for entry in root.iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
                    fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                    children[int(fields[_PARENT_FIELD])].append(int(entry.name))
    found, open_ends = {pid}, [pid]
    while open_ends:
        fresh = [child for child in children[open_ends.pop()] if child not in found]
        found.update(fresh)
        open_ends += fresh
    return frozenset(found)
