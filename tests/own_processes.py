"""Python in processes of its own, which can import this checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forked_python import run_forked

from warmup.cli.streams import EXIT_UNDECIDED

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "programs"
MODELS = PROGRAMS / "models"
Done = subprocess.CompletedProcess[str]
Built = tuple[Path, dict[str, Any]]  # a table, and what the command that built it printed
# Other tests keep this machine busy all the time: waiting for quiet would be in vain.
NO_WAIT = {"WARMUP_WAIT_FOR_QUIET": "0"}


def environment() -> dict[str, str]:
    """Variables of this process without those of warmup; this checkout is importable."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")},
        **NO_WAIT,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }


def codes_of(words: Sequence[str]) -> set[int]:
    """Return the exit codes of a command of *words* that did what it was told."""
    # A build with few rows on a busy machine may find that it could decide none of them.
    return {0, EXIT_UNDECIDED} if "build" in words else {0}


def python_in(
    folder: Path, *words: str, code: int | None = None, cwd: Path | None = None, **variables: str
) -> Done:
    """Run Python in a forked process, in *cwd* or else in *folder*, which has its caches."""
    # The process ends with *code*, or else as a command that did what it was told.
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    done = run_forked(*words, env={**environment(), **caches, **variables}, cwd=cwd or folder)
    assert done.returncode in (codes_of(words) if code is None else {code}), done.stderr[-4000:]
    return done


def warmup_in(folder: Path, *words: str, code: int | None = None, **variables: str) -> Done:
    return python_in(folder, "-m", "warmup", *words, code=code, **variables)


def answer_of(said: str) -> Any:
    """Return the JSON that a test program printed last, behind ``RESULT`` or alone on its line."""
    return json.loads(said.strip().rpartition("\n")[2].removeprefix("RESULT "))


def run_python(*arguments: str, cwd: Path | None = None, timeout: float = 60) -> Done:
    """The finished process: ``run_python("-m", "warmup", ...)``, from the checkout."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(),
        cwd=cwd or ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


# Reads each file of a kind, and prints the memory in MB that the last took beyond the others, and
# what was said of it.
_PEAK = """
import resource, sys
from pathlib import Path
from warmup.core.errors import WarmupError
from warmup.serving.audit import read_misses
from warmup.table.bundle import open_bundle
from warmup.table.store import read
def unpack(path):
    with open_bundle(path) as bundle:
        for _, pieces in bundle.members():
            for _ in pieces:
                pass
work, peaks = {"table": read, "misses": read_misses, "bundle": unpack}[sys.argv[1]], []
for path in sys.argv[2:]:
    said = "read"
    try:
        work(Path(path))
    except WarmupError as error:
        said = str(error)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(round(peaks[-1] - peaks[0]), said)
"""


def peak_of(kind: str, *paths: Path) -> tuple[int, str]:
    """Return the memory in MB that reading the last of *paths* takes, and its error or ``read``."""
    done = run_python("-c", _PEAK, kind, *map(str, paths))
    megabytes, _, said = done.stdout.partition(" ")
    assert done.returncode == 0, done.stderr
    return int(megabytes), said.strip()


def run_together(code: str, arguments: list[list[str]]) -> list[subprocess.Popen[str]]:
    """Start one process per argument list; each runs *code* after all of them said ready."""
    gated = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    head, _, body = code.partition("# go\n")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", head + gated + body, *words],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in arguments
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return processes
