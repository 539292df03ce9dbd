"""`standard_streams`: stdout and stderr of a command, whether they are closed, full or broken."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

import typer

from warmup.core.errors import WarmupError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


# Exit codes of commands that no error class has.
EXIT_FOUND = 1  # a difference, a failed condition or a doubt that the command looks for, or no row
EXIT_USAGE = 2  # usage: an unknown option, a missing argument, a refused value
EXIT_UNDECIDED = 4  # `build`: every row measured is unstable, so that no time carries a decision
EXIT_MISMATCH = 10  # `check`, `run`: the table is for another device, runtime or digest
EXIT_FAULT = 70  # a fault of warmup's own, with a traceback
EXIT_INTERRUPTED = 130  # interrupted by SIGINT; finished problems of a build are in the table
EXIT_TERMINATED = 143  # interrupted by SIGTERM, likewise


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
        with self._noting_failure():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
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

    What stderr does not take is dropped. Where stdout did not take all of a report, stderr and the
    exit code say so at the end; where its reader left, the exit code alone.
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
    """Open the null device for closed descriptors, whose numbers the next files would get."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  for the process's life
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


# Ctrl-C and SIGTERM: the end of a long command, with the exit code of each.

_AGAIN_S: Final = 0.05  # by then the finalizer that lost the signal has returned, nearly always


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as opposed to Ctrl-C."""


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated


@contextlib.contextmanager
def interruptible(report: Callable[[], None] | None = None) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the command inside; *report* is called first."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        with _lost_signals_again():
            yield
    except KeyboardInterrupt as interrupt:
        if report is not None:
            report()
        terminated = isinstance(interrupt, _Terminated)
        raise typer.Exit(EXIT_TERMINATED if terminated else EXIT_INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _lost_signals_again() -> Iterator[None]:
    """Raise a signal again that arrived in a finalizer, whose exceptions Python drops."""
    before, is_open = sys.unraisablehook, True
    main = threading.get_ident()  # of the main thread, as `signal.signal` has checked

    def send(number: signal.Signals) -> None:
        time.sleep(_AGAIN_S)
        if is_open:
            signal.pthread_kill(main, number)

    def hook(unraisable: UnraisableHookArgs, /) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        terminated = issubclass(unraisable.exc_type, _Terminated)
        number = signal.SIGTERM if terminated else signal.SIGINT
        # Later, since a signal that is raised here is dropped here; and without a lock of
        # `threading`, which the main thread may hold where its finalizer was interrupted.
        _thread.start_new_thread(send, (number,))

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook, is_open = before, False
