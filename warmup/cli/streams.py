"""`standard_streams`: stdout and stderr of a command, whether they are closed, full or broken."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO

from warmup.cli.exit_codes import EXIT_FOUND
from warmup.core.errors import WarmupError

_STDERR: Final = 2


class CarefulStream:
    """A text stream that drops everything from the first write that fails on; else *stream*.

    ``failure`` is the error of that write, None before. With *ends* a pipe without a reader raises
    it: nobody waits for the rest of the command.
    """

    def __init__(self, stream: TextIO, *, ends: bool) -> None:
        self._stream = stream
        self._ends = ends
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write *text*, or drop it; return its length."""
        with self._noting_failure():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or drop it."""
        with self._noting_failure():
            if not self._stream.closed:
                self._stream.flush()

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
            self._stream.flush()  # else it fails again when Python ends, with exit code 120
            if self._ends and isinstance(error, BrokenPipeError):
                raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Make both streams fit to be written in the context, and end with the exit code that is due.

    A stream that was closed before the start goes to the null device: nobody wants its text.
    Messages that stderr does not take are dropped, and change no exit code. Where stdout did not
    take all of a report, stderr and the exit code say so at the end; where its reader left, the
    exit code alone.
    """
    _open_closed()
    before = sys.stdout, sys.stderr
    reports = CarefulStream(sys.stdout, ends=True)
    messages = CarefulStream(sys.stderr, ends=False)
    sys.stdout, sys.stderr = reports, messages
    ended: BaseException | None = None
    try:
        try:
            yield
        except (SystemExit, BrokenPipeError) as error:
            ended = error
        with contextlib.suppress(BrokenPipeError):
            reports.flush()
        if isinstance(reports.failure, BrokenPipeError):
            sys.exit(EXIT_FOUND)
        if reports.failure is not None:
            reason = f"stdout cannot be written: {reports.failure.strerror}"
            messages.write(f"error: {reason}; send it to a file that can be\n")
            sys.exit(WarmupError.exit_code)
        if ended is not None:
            raise ended
    finally:
        messages.flush()
        sys.stdout, sys.stderr = before


def _open_closed() -> None:
    """Open the null device for each of the three descriptors that is closed.

    Else the next file that is opened would get its number, and the output of a child process.
    """
    for number in range(_STDERR + 1):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  for the process's life
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
