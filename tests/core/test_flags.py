"""Switches that an argument or a variable turns on."""

from __future__ import annotations

import pytest

from warmup.core.errors import SettingsError
from warmup.core.method import read_flag


def test_an_argument_goes_before_the_variable() -> None:
    """The variable counts where the argument is None; unset, empty and 0 are off."""
    for argument, value, expected in (
        (None, None, False),
        (None, "", False),
        (None, "0", False),
        (None, "1", True),
        (False, "1", False),
        (True, "0", True),
    ):
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.delenv("WARMUP_QUIET", raising=False)
            if value is not None:
                monkeypatch.setenv("WARMUP_QUIET", value)
            assert read_flag(argument, "WARMUP_QUIET") is expected, (argument, value, expected)


def test_another_value_is_refused() -> None:
    for value in ("true", "yes", "2", " "):
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setenv("WARMUP_QUIET", value)
            with pytest.raises(SettingsError, match=r"^WARMUP_QUIET=.* set it to 1 or to 0$"):
                read_flag(None, "WARMUP_QUIET")
