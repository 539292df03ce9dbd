"""Fresh processes with empty caches for the benchmark programs, started as `warmup compare` does.

A process runs `server.py`, which answers requests with what it measured. Its caches are in a folder
that the caller makes and removes; what it prints is in the file ``log`` there. This side needs no
torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warmup.bench.compare import Answer, Remote
from warmup.cli.streams import EXIT_UNDECIDED
from warmup.core.processes import ChildError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DAY_S = 24 * 3600.0
_SHOWN = 3000
_END_S = 20.0  # for a build to write what it has


class StoppedError(Exception):
    """A program failed, or the limit ended it; the text says which."""


def begin(folder: str) -> Remote:
    """Start a process that finds its caches in *folder* and no table of its own."""
    kept = {name: os.environ[name] for name in ("WARMUP_AUDIT_LOG",) if name in os.environ}
    return Remote([str(HERE / "server.py")], Path(folder) / "log", {**caches_in(folder), **kept})


def caches_in(folder: str) -> dict[str, str]:
    """Return the variables by which a process has its caches in *folder*."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "CUDA_CACHE_PATH": f"{folder}/cuda",
    }


def ask_fresh(
    what: str, folder: str | None = None, *, left_s: float = DAY_S, **arguments: Any
) -> Answer:
    """Return the answer of a process that is started for this request, over caches in *folder*.

    Without a folder the caches are empty, and removed afterwards. The request also says when the
    process was started, as ``spawned``.

    Raises:
        StoppedError: the request failed, or took longer than *left_s*; the end of what the process
            printed is in the message.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
        caches, spawned = folder or own, time.monotonic()
        with begin(caches) as remote:
            try:
                return remote.ask({"do": what, "spawned": spawned, **arguments}, left_s)
            except ChildError as lost:
                log = Path(caches, "log").read_text(encoding="utf-8", errors="replace")
                raise StoppedError(f"{log[-_SHOWN:]}\n{what} failed: {lost}") from lost


def run_program(words: Sequence[str], log: Path, left_s: float) -> str:
    """Return what *words* print, run with empty caches for at most *left_s*; stderr goes to *log*.

    Raises:
        StoppedError: the program failed or was ended; *log* has what it said.
    """
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches,
        log.open("w") as said,
    ):
        plain = {key: value for key, value in os.environ.items() if not key.startswith("WARMUP_")}
        environment = {**plain, **caches_in(caches), "PYTHONPATH": python_path()}
        child = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=said, text=True, env=environment
        )
        try:
            text, _ = child.communicate(timeout=left_s)
        except subprocess.TimeoutExpired:
            child.terminate()
            try:
                child.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
            raise StoppedError(f"the limit ended {log.stem}") from None
    if child.returncode not in (0, EXIT_UNDECIDED):  # a table of unstable rows is a table
        tail = log.read_text(encoding="utf-8", errors="replace")[-_SHOWN:]
        raise StoppedError(f"{log.stem}: exit code {child.returncode}: {tail}")
    return text


def python_path() -> str:
    """Return the path on which a process finds this warmup first, and then what this one has."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options of *names* that several programs have, most as for ``warmup build``."""
    known: dict[str, dict[str, Any]] = {
        "model": {"required": True},
        "seqlens": {"required": True, "type": numbers},
        "table": {"help": "path of the table"},
        "device": {"default": "auto"},
        "limit": {"type": float, "default": DAY_S, "help": "seconds"},
        "results": {"type": Path, "default": Path("results.json"), "help": "what is written"},
    }
    for name in names:
        parser.add_argument(f"--{name}", **known[name])


def numbers(text: str) -> list[int]:
    """Return the numbers in ``2,8,32``."""
    return [int(word) for word in text.split(",")]


def now() -> str:
    """Return the time in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def write(path: Path, document: Any) -> None:
    """Write *document* as JSON, in a folder that is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def say(*words: object, sep: str = " ") -> None:
    """Print a line at once."""
    print(*words, sep=sep, flush=True)  # noqa: T201  the progress of a program
