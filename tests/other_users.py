"""Python of a user without rights of its own, a passwd entry or a home, and folders for it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_processes import run_python

OTHER_USER = 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes devices and other users' files")
# Imports come first: a checkout may be root's alone.
_BECOME = f"""
import fcntl, os, sys, tempfile
from pathlib import Path
import filelock, platformdirs, platformdirs.unix
from warmup.core import files
from warmup.core.errors import WarmupError
from warmup.table import store
os.environ.pop("HOME", None)
os.umask(0o077)
group = int(sys.argv.pop())
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(*[group] * 3)
    os.setresuid(*[{OTHER_USER}] * 3)
"""


def run_as_other(code: str, *words: object, group: int = OTHER_USER) -> str:
    """Run *code* as a user of *group*, with *words* in ``sys.argv``; return what it prints."""
    done = run_python("-c", _BECOME + code, *map(str, words), str(group))
    assert done.stderr == ""
    return done.stdout


@contextlib.contextmanager
def public_folder(mode: int = 0o755) -> Iterator[Path]:
    """Give a folder that every user can enter; those of pytest are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(mode)
        yield Path(name)
