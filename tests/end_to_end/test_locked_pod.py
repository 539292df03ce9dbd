"""A locked-down pod, for real: a UID without a passwd entry, no HOME, no writable folder.

The process keeps one capability, to read past folder permissions: where these tests run, Python
itself may be installed under a home that only root may enter. It can write nothing by it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.table.store import read, write

ROOT = Path(__file__).resolve().parents[2]
NET = f"{ROOT / 'tests' / 'programs' / 'models' / 'plain_script.py'}:Net"
UID = "1000770000"
DROP = (
    *("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--no-new-privs"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
)
MOUNT = Path("/dev/shm")  # noqa: S108  a file system of its own, which stays writable
READ_ONLY_ROOT = 'mount -o remount,bind,ro / && exec "$@"'

Done = subprocess.CompletedProcess[str]


def works(*command: str) -> bool:
    return shutil.which(command[0]) is not None and (
        subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


is_root = sys.platform == "linux" and os.geteuid() == 0
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (is_root and works(*DROP, "true")), reason="only root can become another user"
    ),
]
needs_mounts = pytest.mark.skipif(
    not (is_root and works("unshare", "--mount", "sh", "-c", READ_ONLY_ROOT, "sh", "true")),
    reason="this sandbox has no mount namespaces",
)


def locked(folder: Path, *words: str, before: tuple[str, ...] = (), **variables: str) -> Done:
    """Run warmup as nobody known, with an emptied environment, in *folder*."""
    emptied = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "", **variables}
    if "OMP_NUM_THREADS" in os.environ:  # else the table is for a device with other threads
        emptied["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
    named = [f"{name}={value}" for name, value in emptied.items()]
    setpriv, env = (str(shutil.which(name)) for name in ("setpriv", "env"))
    return subprocess.run(
        [*before, setpriv, *DROP[1:], env, "-i", *named, sys.executable, "-m", "warmup", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(
    net: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A read-only folder with nothing but net.json, a table for 8 rows built here."""
    # `check` remarks on no unstable row, whatever else the machine did during the build.
    folder, table = tmp_path_factory.mktemp("locked"), read(net[0])
    rows = {k: replace(r, evidence=replace(r.evidence, flags=())) for k, r in table.rows.items()}
    stable = tmp_path_factory.mktemp("stable") / "net.json"
    write(stable, replace(table, rows=rows))  # and a lock beside it
    Path(shutil.copy(stable, folder)).chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


@pytest.fixture
def writable(tmp_path: Path) -> Path:
    """A folder of the unknown user's own: what a pod mounts for caches."""
    folder = tmp_path / "writable"
    folder.mkdir()
    os.chown(folder, int(UID), int(UID))
    return folder


def test_a_check_works_without_user_home_or_path(folder: Path, writable: Path) -> None:
    """An unknown user, an emptied environment: code 0, and one warning, of the missing compiler.

    The table's bytes and times are unchanged, and nothing lies beside the table.
    """
    table = folder / "net.json"
    before = table.read_bytes(), table.stat().st_mtime_ns, folder.stat().st_mtime_ns
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(writable)}
    done = locked(folder, "check", "net.json", "--device", "cpu", **caches)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "state     ready (0)")
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: inductor finds no C++ compiler")
    after = table.read_bytes(), table.stat().st_mtime_ns, folder.stat().st_mtime_ns
    assert after == before
    assert [path.name for path in folder.iterdir()] == ["net.json"]


def test_priming_needs_one_writable_folder_only(folder: Path, writable: Path) -> None:
    """With a compiler and a folder for caches, the same user compiles every bucket: code 0."""
    done = locked(
        folder,
        *("check", "net.json", "--device", "cpu", "--prime", "--model", NET, "--seqlens", "8"),
        "--freezing",
        *("--input", "x=[seqlen,32]:f32", "--json"),
        PATH=os.environ["PATH"],
        TORCHINDUCTOR_CACHE_DIR=str(writable / "inductor"),
        TMPDIR=str(writable),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [bucket["hits"] for bucket in json.loads(done.stdout)["buckets"]] == [1]


def test_priming_without_a_compiler_says_what_is_missing(folder: Path, writable: Path) -> None:
    """No bucket compiles: code 11, and the compiler is named, without a traceback."""
    done = locked(
        folder,
        *("check", "net.json", "--device", "cpu", "--prime", "--model", NET, "--seqlens", "8"),
        "--freezing",
        *("--input", "x=[seqlen,32]:f32"),
        TORCHINDUCTOR_CACHE_DIR=str(writable / "inductor"),
        TMPDIR=str(writable),
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (11, 2), done.stderr[-3000:]
    assert lines[0].startswith("error: bucket seqlen=8: ")
    assert "no C++ compiler" in lines[1]


@needs_mounts
def test_a_root_without_any_writable_folder_is_named(folder: Path) -> None:
    """On a read-only root without /tmp torch cannot be imported: code 10, naming what to set."""
    mounted = ("unshare", "--mount", "sh", "-c", READ_ONLY_ROOT, "sh")
    done = locked(folder, "check", "net.json", "--device", "cpu", before=mounted)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, "No usable temporary directory" in line) == (10, True)
    assert "TORCHINDUCTOR_CACHE_DIR" in line


@needs_mounts
@pytest.mark.skipif(not os.access(MOUNT, os.W_OK), reason=f"there is no {MOUNT}")
def test_a_read_only_root_with_one_writable_mount_is_ready(folder: Path) -> None:
    """On a read-only root a mount for caches and temporary files is enough: code 0."""
    mounted = ("unshare", "--mount", "sh", "-c", READ_ONLY_ROOT, "sh")
    with tempfile.TemporaryDirectory(dir=MOUNT) as own:
        os.chown(own, int(UID), int(UID))
        done = locked(
            folder,
            *("check", "net.json", "--device", "cpu"),
            before=mounted,
            TMPDIR=own,
            TORCHINDUCTOR_CACHE_DIR=f"{own}/inductor",
        )
    assert done.returncode == 0, done.stderr[-3000:]
