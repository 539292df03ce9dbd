"""Signals to a long command, wherever they arrive."""

from __future__ import annotations

import os
import signal
import sys
import time
import weakref

import pytest
import typer

from warmup.cli.streams import interruptible


class _Dies:
    """An object to which weak references can be made."""


@pytest.mark.usefixtures("heeded_ctrl_c")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_arrives_in_a_finalizer_ends_the_command(
    number: signal.Signals, code: int
) -> None:
    """Python drops what a weak reference's callback raises; the command ends with its code."""
    asked: list[object] = []

    def signalled(_dead: weakref.ref[_Dies]) -> None:
        asked.append(number)
        os.kill(os.getpid(), number)
        for _ in range(100):
            time.sleep(0.01)
        asked.append("not reached")

    def long_command() -> None:
        dies = _Dies()
        asked.append(weakref.ref(dies, signalled))
        with interruptible():
            del dies
            time.sleep(30)

    with pytest.raises(typer.Exit) as ended:
        long_command()
    assert ended.value.exit_code == code
    assert asked[1:] == [number]


def test_other_errors_of_finalizers_are_said_as_before() -> None:
    """What else a finalizer raises reaches the hook that was there, which is there again after."""
    said = []
    before, sys.unraisablehook = sys.unraisablehook, said.append
    dies = _Dies()
    kept = weakref.ref(dies, lambda _dead: {}[0])
    try:
        with interruptible():
            del dies
        after = sys.unraisablehook
    finally:
        sys.unraisablehook = before
    assert [type(unraisable.exc_value) for unraisable in said] == [KeyError]
    assert after == said.append
    assert kept() is None
