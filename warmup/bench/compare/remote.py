"""`Remote`: a child program that answers requests, one at a time; `serve` is the child's side.

`Entrant` is a remote that takes part in a measurement until it fails. `warmup compare` and the
benchmark programs start every process that they measure through this module, which does not import
torch.
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
    """A child that runs ``python PROGRAM... FD`` and prints into the file *log*, which is replaced.

    *program* is the path of a program, or ``-m`` and a module. `close`, or the exit of the context
    manager, ends the child.
    """

    def __init__(self, program: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        with log.open("w+b") as file:
            self._child = Child([sys.executable, *program], environment, file)

    @property
    def pid(self) -> int:
        """The child's process ID."""
        return self._child.pid

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Answer:
        """Return the child's answer to *request*.

        Raises:
            ChildError: the child answered that it failed, ended, or did not answer within
                *timeout_s* seconds; send no further request.
        """
        self._child.send(request)
        answer = self._child.receive(timeout_s)
        if "failed" in answer:
            raise ChildError(str(answer["failed"]))
        return answer

    def close(self) -> None:
        """End the child and the processes that it started, at once; may be called twice."""
        self._child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(kw_only=True)
class Entrant:
    """A remote that is measured in turn with others, until it fails.

    ``failure`` is the reason of the failure, None until then; ``on_failure`` is called with the
    reason, once. ``timeout_s`` is the longest wait for an answer, in seconds.
    """

    remote: Remote
    timeout_s: float
    on_failure: Callable[[str], None]
    failure: str | None = None

    def ask(self, what: str, **arguments: Any) -> Answer | None:
        """Return the answer to the request *what*; None if the process fails or failed before."""
        if self.failure is not None:
            return None
        try:
            return self.remote.ask({"do": what, **arguments}, self.timeout_s)
        except ChildError as error:
            self.fail(str(error))
            return None

    def fail(self, reason: str) -> None:
        """End the process, and record and report *reason*."""
        self.failure = reason
        self.remote.close()
        self.on_failure(reason)


def serve(handlers: Mapping[str, Callable[..., Answer]], answers: int) -> None:
    """Answer requests with *handlers* until standard input is closed; runs in the child.

    Requests come on standard input, answers go to the file descriptor *answers*. A request
    ``{"do": NAME, ...}`` calls the handler NAME with the other fields as arguments. An exception of
    the handler is answered as ``{"failed": REASON}``, and its traceback is printed to stderr.
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
        message = str(own) if own is not None else f"{type(error).__name__}: {error}"
        return {"failed": " ".join(message.split())[:_ANSWER_LENGTH]}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


@contextlib.contextmanager
def _commands() -> Iterator[BinaryIO]:
    """Yield the requests, and leave the user's code an empty standard input."""
    requests = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    with os.fdopen(requests, "rb") as commands:
        yield commands
