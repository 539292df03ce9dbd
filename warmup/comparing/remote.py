"""A child process that answers requests, one at a time, over pipes. Floor 2; no torch.

Requests are lines of JSON on the child's standard input, answers are lines on a descriptor of their
own, so that whatever the child prints goes to its log and into neither.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from warmup.errors import warmup_error_in

_CHUNK: Final = 1 << 16
_LONGEST: Final = 300
_TAIL: Final = 8192

Answer = Mapping[str, Any]


class LostError(Exception):
    """The child failed, died or hung: why."""


class Remote:
    """A child that runs ``python -m MODULE FD`` in a session of its own.

    What it prints goes to *log*. Close it, or use it as a context manager, to end it.
    """

    def __init__(self, module: str, log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        ours, theirs = os.pipe()
        try:
            with log.open("wb") as file:
                self._process = subprocess.Popen(  # noqa: S603  warmup's own module
                    [sys.executable, "-m", module, str(theirs)],
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    pass_fds=(theirs,),
                    env=dict(environment),
                    start_new_session=True,  # Ctrl-C is the parent's to handle
                )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._answers = os.fdopen(ours, "rb", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answers, selectors.EVENT_READ)
        self._buffer = b""

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Answer:
        """Return what the child answers to *request*.

        Raises:
            LostError: it says that it failed, it died, or *timeout_s* passed; ask no more.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which reading will tell
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise LostError(f"no answer within {timeout_s:g} s{self._last_line()}")
            found = os.read(self._answers.fileno(), _CHUNK)
            if not found:
                raise LostError(self._how_it_ended())
            self._buffer += found
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: Answer = json.loads(line)
        if "failed" in answer:
            raise LostError(str(answer["failed"]))
        return answer

    def close(self) -> None:
        """End the child and what it started, at once; closing twice is fine."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._selector.close()
        self._answers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        killed = f"killed by {signal.Signals(-code).name}" if code < 0 else ""
        return f"{killed or f'ended with exit code {code}'}{self._last_line()}"

    def _last_line(self) -> str:
        """Return what the log ends with, to be put after a reason."""
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL, 0))
            lines = file.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"; its last line: {said[-1][:_LONGEST]}" if said else ""


def serve(handlers: Mapping[str, Callable[..., Answer]], answers: int) -> None:
    """Answer requests on standard input with *handlers*, until it is closed; the child's side.

    A request ``{"do": NAME, ...}`` is a call of the handler of that name with the rest as
    arguments. What it raises is answered as ``{"failed": REASON}`` and told in full on stderr.
    """
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
        return {"failed": " ".join(said.split())[:_LONGEST]}
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
