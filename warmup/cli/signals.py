"""Ctrl-C and SIGTERM: the end of a long command, with the exit code of each."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from warmup.cli.exit_codes import EXIT_INTERRUPTED, EXIT_TERMINATED


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as opposed to Ctrl-C."""


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated


@contextmanager
def interruptible(report: Callable[[], None] | None = None) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the command inside; *report* is called first."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if report is not None:
            report()
        terminated = isinstance(interrupt, _Terminated)
        raise typer.Exit(EXIT_TERMINATED if terminated else EXIT_INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)
