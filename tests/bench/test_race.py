"""The processes of a comparison: how they answer, and how far from eager they may be."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warmup.bench.compare import CompareProgress, Entrant, Race, Remote
from warmup.core.processes import ChildError

LIMIT = 0.02
PROGRAM = """
import os, sys, time
from warmup.bench.compare import serve

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

serve({one.__name__: one for one in (echo, raising, dying, hanging)})
"""


def judged(**errors: float) -> dict[str, tuple[float, float]]:
    """Return the error and the limit of each variant, by name, in one bucket."""
    race = Race(Path(), Path(), {}, 1.0, CompareProgress(), contextlib.ExitStack())
    entrants: list[Any] = [
        SimpleNamespace(failure=None, variant=SimpleNamespace(name=name), errors=[(error, LIMIT)])
        for name, error in errors.items()
    ]
    race.entrants = entrants
    race.allow_rounding()
    return {entrant.variant.name: entrant.errors[0] for entrant in entrants}


def test_every_variant_may_be_as_far_from_eager_as_default_mode() -> None:
    """One and a half times default's error, at least the tolerance, at most ten of them."""
    for default, limit in ((0.025, 0.0375), (0.001, LIMIT), (0.21, LIMIT)):
        found = judged(eager=0.0, default=default, table=0.0235)
        assert [own for _, own in found.values()] == [pytest.approx(limit)] * 3, default


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
        remote.kill()


def test_a_program_is_started_by_its_path_and_answers(
    start: Callable[[], Remote], tmp_path: Path
) -> None:
    """The answer has its process ID and its environment; what it prints goes to its log.

    An error of a request is its reason, in one line; the process goes on.
    """
    with start() as remote:
        answer = remote.ask({"do": "echo", "text": "a"}, 60)
        assert answer == {"text": "a", "pid": remote.pid, "cache": "here"}
        with pytest.raises(ChildError, match="ValueError: no such size"):
            remote.ask({"do": "raising"}, 60)
        assert remote.ask({"do": "echo", "text": "b"}, 60)["text"] == "b"
    assert (tmp_path / "log-0").read_text().startswith("printed a\n")


def test_an_entrant_that_fails_is_out_and_the_others_go_on(start: Callable[[], Remote]) -> None:
    """Its failure is told once, its process is ended, and it answers no later request."""
    failures: list[str] = []
    dying, hanging, other = (
        Entrant(remote=start(), timeout_s=60.0, on_failure=failures.append) for _ in range(3)
    )
    for entrant, what, timeout_s, reason in (
        (dying, "dying", 60.0, "ended with exit code 7 (about to die)"),
        (hanging, "hanging", 0.5, "said nothing"),
    ):
        answer = entrant.ask("echo", text="c")
        assert answer is not None
        entrant.timeout_s = timeout_s
        assert entrant.ask(what) is None
        assert entrant.ask("echo", text="d") is None
        assert failures[-1] == entrant.failure
        assert reason in failures[-1]
        with pytest.raises(ProcessLookupError):
            os.kill(answer["pid"], 0)
    found = other.ask("echo", text="e")
    assert found is not None
    assert (found["text"], other.failure, len(failures)) == ("e", None, 2)
