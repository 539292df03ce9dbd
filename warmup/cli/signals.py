"""How a long command ends by Ctrl-C or SIGTERM: with the code of each."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from warmup.cli.exit_codes import EXIT_INTERRUPTED, EXIT_TERMINATED


class _Terminated(KeyboardInterrupt):
    """SIGTERM, told apart from Ctrl-C."""


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated


@contextmanager
def interruptible(say: Callable[[], None] | None = None) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the command while the context is open; *say* is called first."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if say is not None:
            say()
        terminated = isinstance(interrupt, _Terminated)
        raise typer.Exit(EXIT_TERMINATED if terminated else EXIT_INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)
