"""Ctrl-C and SIGTERM: the end of a long command, with the exit code of each."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from warmup.cli.exit_codes import EXIT_INTERRUPTED, EXIT_TERMINATED

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_S: Final = 0.05  # by then the finalizer that lost the signal has returned, nearly always


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as opposed to Ctrl-C."""


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated


@contextmanager
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


@contextmanager
def _lost_signals_again() -> Iterator[None]:
    """Raise a signal again that arrived in a finalizer, whose exceptions Python drops.

    A compile makes thousands of weak references, and a signal that arrives in the callback of one
    would leave the command running.
    """
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
