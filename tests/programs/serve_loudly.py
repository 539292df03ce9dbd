"""Serves the plain script's model in a way in which its table is of no use.

    python serve_loudly.py TABLE CASE [LOG]

Events go to ``WARMUP_AUDIT_LOG``, the log of the program to the file LOG.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).with_name("models")))

from plain_script import Net

import warmup


def compiled(**settings: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    model: torch.nn.Module = torch.compile(Net().eval(), **settings)
    return model


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def useless() -> None:
    for size in (8, 9):  # with gradients on
        compiled(dynamic=False)(torch.ones(size, 32))
    with torch.no_grad():
        for _ in range(2):
            compiled(dynamic=True)(torch.ones(5, 32))


def unasked() -> None:
    torch.compile(double)(torch.ones(3))


@torch.no_grad()
def strict() -> None:
    compiled(dynamic=False)(torch.ones(7, 32))


@torch.no_grad()
def killed() -> None:
    for size in (8, 7):
        compiled(dynamic=False)(torch.ones(size, 32))
    os.kill(os.getpid(), signal.SIGKILL)


CASES = {"useless": useless, "unasked": unasked, "strict": strict, "killed": killed}


def main() -> None:
    table, case, *log = sys.argv[1:]
    if log:
        logging.basicConfig(level=logging.INFO, filename=log[0])
    if case == "useless":
        torch.compile(double)(torch.ones(3))
    on_miss = "strict" if case == "strict" else "fallback"
    handle = warmup.install(table, on_miss=on_miss, freezing=True)
    CASES[case]()
    handle.settle()


if __name__ == "__main__":
    main()
