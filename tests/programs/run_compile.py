"""Asks torch to compile as often as it is told to, and prints what came of it.

python run_compile.py COUNT
"""

from __future__ import annotations

import sys

import torch

for _ in range(int(sys.argv[1])):
    try:
        torch.compile(len)
    except Exception as error:  # noqa: BLE001  printed
        sys.stdout.write(f"{type(error).__name__}\n")
    else:
        sys.stdout.write("compiled\n")
