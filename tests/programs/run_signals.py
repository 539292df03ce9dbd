"""Prints a line for each SIGINT and SIGTERM, and ends with how many came at SIGUSR1.

python run_signals.py
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

came: list[int] = []


def note(number: int, _frame: FrameType | None) -> None:
    came.append(number)
    sys.stdout.write(f"got {number}\n")
    sys.stdout.flush()


def end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(len(came))


signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGUSR1, end)
sys.stdout.write("ready\n")
sys.stdout.flush()
while True:
    signal.pause()
