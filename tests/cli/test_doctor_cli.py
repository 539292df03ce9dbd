"""`warmup doctor` in its own process, on this machine and on ones that lack something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

Done = subprocess.CompletedProcess[str]
Doctor = Callable[..., Done]


@pytest.fixture
def doctor(root: Path) -> Doctor:
    """``doctor("--json", HOME="/root")``: nothing else is in its environment."""

    def run(*words: str, before: tuple[str, ...] = (), **environment: str) -> Done:
        return subprocess.run(
            [*before, sys.executable, "-B", "-m", "warmup", "doctor", *words],
            env={"PYTHONPATH": str(root), **environment},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def found_in(done: Done) -> dict[str, dict[str, Any]]:
    assert done.stdout, done.stderr
    return {finding["name"]: finding for finding in json.loads(done.stdout)}


def test_this_machine_is_examined_and_left_as_it_was(doctor: Doctor, tmp_path: Path) -> None:
    """Folders that were tried are gone again, and the compiler has really compiled."""
    pytest.importorskip("torch")
    cache = tmp_path / "a" / "b"
    done = doctor(
        *("--device", "cpu", "--json"), PATH=os.environ["PATH"], TORCHINDUCTOR_CACHE_DIR=str(cache)
    )
    states = {name: finding["state"] for name, finding in found_in(done).items()}
    names = ["torch", "compiler", "temporary folder", "cache folder", "device"]
    assert (done.returncode, [states[name] for name in names], list(tmp_path.iterdir())) == (
        0,
        ["ok"] * 5,
        [],
    )


def test_a_cache_folder_that_cannot_be_made_fails(doctor: Doctor) -> None:
    """A folder that cannot be written is named, with the variable that moves it."""
    pytest.importorskip("torch")
    done = doctor("--device", "cpu", "--json", TORCHINDUCTOR_CACHE_DIR="/proc/cache")
    found = found_in(done)
    assert (found["cache folder"]["state"], found["device"]["state"]) == ("fail", "warn")
    assert found["cache folder"]["said"] == "/proc/cache: No such file or directory"


def test_a_cache_folder_on_a_noexec_mount_fails(doctor: Doctor, tmp_path: Path) -> None:
    """Code on such a mount cannot be loaded, and that is seen before anything is compiled."""
    pytest.importorskip("torch")
    mount = f'mount -t tmpfs -o noexec tmpfs {tmp_path} && exec "$@"'
    before = ("unshare", "-m", "sh", "-c", mount, "sh")
    if subprocess.run([*before, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("cannot mount here")
    done = doctor(
        *("--device", "cpu", "--json"),
        before=before,
        PATH=os.environ["PATH"],
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
    )
    found = found_in(done)["cache folder"]
    assert (done.returncode, found["state"], "noexec" in found["said"]) == (1, "fail", True)


def test_a_device_that_is_not_here_fails(doctor: Doctor) -> None:
    """A GPU asked for and not found is a finding, as is the compiler that CC names in vain."""
    pytest.importorskip("torch")
    done = doctor("--device", "cuda:99", "--json", CC="/nowhere/gcc", HOME="/nowhere")
    found = found_in(done)
    assert done.returncode == 1
    assert found["compiler"]["said"] == "/nowhere/gcc: No such file or directory"
    assert found["device"]["state"] == "fail"


def test_a_torch_that_cannot_be_imported_is_a_finding(
    doctor: Doctor, tmp_path: Path, root: Path
) -> None:
    """Text is a line with state, check and what was found, then the fix on a line below."""
    said = "libcudart.so.13: cannot open shared object file"
    (tmp_path / "torch.py").write_text(f"raise ImportError({said!r})\n")
    done = doctor(PYTHONPATH=os.pathsep.join((str(tmp_path), str(root))))
    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            f"fail torch            {said}",
            "                      fix: install torch again, with the libraries that it names",
        ],
    )
