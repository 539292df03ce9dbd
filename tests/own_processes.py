"""Python in processes of its own, which can import this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from warmup.cli.streams import EXIT_UNDECIDED

ROOT = Path(__file__).resolve().parents[1]
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
    """Return the exit codes of a command of *words* that did what it was told.

    A build with few rows on a busy machine may find that it could decide none of them.
    """
    return {0, EXIT_UNDECIDED} if "build" in words else {0}


def run_python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The finished process: ``run_python("-m", "warmup", ...)``, from the checkout."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(),
        cwd=cwd or ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


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
