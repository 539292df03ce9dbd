"""`Remote`: a child program that answers requests, one at a time; `serve` is the child's side.

`Entrant` is a remote that takes part in a measurement until it fails. No torch: `warmup compare`
and the benchmark programs start every process that they measure by this module.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from warmup.core.child_process import Child, ChildError, end_with_parent
from warmup.core.errors import warmup_error_in

_ANSWER_LENGTH: Final = 300

Answer = Mapping[str, Any]


class Remote:
    """A child that runs ``python PROGRAM... FD`` and prints into *log*, a file that it replaces.

    *program* is a path of a program, or ``-m`` and a module. Close the remote, or use it as a
    context manager, to end the child.
    """

    def __init__(self, program: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        with log.open("w+b") as file:
            self._child = Child([sys.executable, *program], environment, file)

    @property
    def pid(self) -> int:
        """The child's process ID."""
        return self._child.pid

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Answer:
        """Return what the child answers to *request*.

        Raises:
            ChildError: it says that it failed, it ended, or *timeout_s* passed; ask no more.
        """
        self._child.send(request)
        answer = self._child.receive(timeout_s)
        if "failed" in answer:
            raise ChildError(str(answer["failed"]))
        return answer

    def close(self) -> None:
        """End the child and what it started, at once; closing twice is fine."""
        self._child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(kw_only=True)
class Entrant:
    """One process of several that are measured in turn, until it fails.

    ``failure`` says why it failed, None until then; *on_failure* is called with it, once.
    ``timeout_s`` is how long it may take for an answer.
    """

    remote: Remote
    timeout_s: float
    on_failure: Callable[[str], None]
    failure: str | None = None

    def ask(self, what: str, **arguments: Any) -> Answer | None:
        """Return the answer to a request for *what*; None when it has failed, now or before."""
        if self.failure is not None:
            return None
        try:
            return self.remote.ask({"do": what, **arguments}, self.timeout_s)
        except ChildError as lost:
            self.fail(str(lost))
            return None

    def fail(self, reason: str) -> None:
        """End the process for *reason*; the others go on."""
        self.failure = reason
        self.remote.close()
        self.on_failure(reason)


def serve(handlers: Mapping[str, Callable[..., Answer]], answers: int) -> None:
    """Answer requests on standard input with *handlers*, until it is closed; the child's side.

    A request ``{"do": NAME, ...}`` is a call of the handler of that name with the rest as
    arguments. What it raises is answered as ``{"failed": REASON}`` and told in full on stderr.
    """
    end_with_parent()
    inherited = False  # else a process started here would keep the pipe open
    os.set_inheritable(answers, inherited)
    with _commands() as commands, os.fdopen(answers, "wb") as out:
        for line in commands:
            request = json.loads(line)
            answer = _answer(handlers[request.pop("do")], request)
            out.write(json.dumps(answer).encode() + b"\n")
            out.flush()


def _answer(handler: Callable[..., Answer], arguments: Mapping[str, Any]) -> Answer:
    try:
        return handler(**arguments)
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        traceback.print_exc()
        own = warmup_error_in(error)
        said = str(own) if own is not None else f"{type(error).__name__}: {error}"
        return {"failed": " ".join(said.split())[:_ANSWER_LENGTH]}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


@contextlib.contextmanager
def _commands() -> Iterator[BinaryIO]:
    """Take standard input from the user's code, which would read requests there."""
    mine = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    with os.fdopen(mine, "rb") as commands:
        yield commands
