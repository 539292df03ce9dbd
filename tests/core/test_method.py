"""A switch that an argument or a variable turns on."""

from __future__ import annotations

import pytest

from warmup.core.errors import SettingsError
from warmup.core.rows import (
    read_flag,
)


def test_an_argument_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable counts where the argument is None; unset, empty and 0 are off."""
    monkeypatch.delenv("WARMUP_QUIET", raising=False)
    assert read_flag(None, "WARMUP_QUIET") is False
    for argument, value, expected in (
        (None, "", False),
        (None, "0", False),
        (None, "1", True),
        (False, "1", False),
        (True, "0", True),
    ):
        monkeypatch.setenv("WARMUP_QUIET", value)
        assert read_flag(argument, "WARMUP_QUIET") is expected, (argument, value)
    for value in ("true", "yes", "2", " "):
        monkeypatch.setenv("WARMUP_QUIET", value)
        with pytest.raises(SettingsError, match=r"^WARMUP_QUIET=.* set it to 1 or to 0$"):
            read_flag(None, "WARMUP_QUIET")
