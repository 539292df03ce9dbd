"""Child programs that answer requests: what `warmup compare` and the benchmarks start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from warmup.bench.compare.remote import Entrant, Remote
from warmup.core.child_process import ChildError

PROGRAM = """
import os, sys, time
from warmup.bench.compare.remote import serve

def echo(text):
    print("printed", text)
    return {"text": text, "pid": os.getpid(), "cache": os.environ["TORCHINDUCTOR_CACHE_DIR"]}

def raising():
    raise ValueError("no such\\nsize")

def dying():
    print("about to die", file=sys.stderr, flush=True)
    os._exit(7)

def hanging():
    time.sleep(600)

serve({one.__name__: one for one in (echo, raising, dying, hanging)}, int(sys.argv[1]))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Remote]]:
    """Start the program, of which each process is ended with the test."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    remotes = []

    def begin() -> Remote:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": "here"}
        remotes.append(Remote([str(path)], tmp_path / f"log-{len(remotes)}", environment))
        return remotes[-1]

    yield begin
    for remote in remotes:
        remote.close()


def test_a_program_is_started_by_its_path_and_answers(
    start: Callable[[], Remote], tmp_path: Path
) -> None:
    """The answer has its process ID and its environment; what it prints goes to its log."""
    with start() as remote:
        answer = remote.ask({"do": "echo", "text": "a"}, 60)
        assert answer == {"text": "a", "pid": remote.pid, "cache": "here"}
    assert (tmp_path / "log-0").read_text() == "printed a\n"


def test_a_request_that_fails_says_why(start: Callable[[], Remote]) -> None:
    """An error of a request is its reason, in one line; the process goes on."""
    with start() as remote:
        with pytest.raises(ChildError, match="ValueError: no such size"):
            remote.ask({"do": "raising"}, 60)
        assert remote.ask({"do": "echo", "text": "b"}, 60)["text"] == "b"


@pytest.mark.parametrize(
    ("what", "timeout_s", "reason"),
    [("dying", 60.0, "ended with exit code 7 (about to die)"), ("hanging", 0.5, "said nothing")],
)
def test_an_entrant_that_fails_is_out_and_the_others_go_on(
    start: Callable[[], Remote], what: str, timeout_s: float, reason: str
) -> None:
    """Its failure is told once, its process is ended, and it answers no later request."""
    failures: list[str] = []
    first, second = (
        Entrant(remote=start(), timeout_s=60.0, on_failure=failures.append) for _ in range(2)
    )
    answer = first.ask("echo", text="c")
    assert answer is not None
    first.timeout_s = timeout_s
    assert first.ask(what) is None
    assert first.ask("echo", text="d") is None
    assert failures == [first.failure]
    assert reason in failures[0]
    with pytest.raises(ProcessLookupError):
        os.kill(answer["pid"], 0)
    found = second.ask("echo", text="e")
    assert found is not None
    assert (found["text"], second.failure) == ("e", None)
