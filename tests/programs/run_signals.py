"""Prints a line for each SIGINT and SIGTERM, and ends with how many came at SIGUSR1.

python run_signals.py
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

came: list[int] = []


def say(line: str) -> None:
    """Write *line* at once: a handler may interrupt the write before it, which a buffer refuses."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def note(number: int, _frame: FrameType | None) -> None:
    came.append(number)
    say(f"got {number}")


def end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(len(came))


signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGUSR1, end)
say("ready")
while True:
    signal.pause()
