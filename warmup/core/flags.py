"""`read_flag`: a switch that an argument or an environment variable turns on."""

from __future__ import annotations

import os

from warmup.core.errors import SettingsError


def read_flag(argument: bool | None, variable: str) -> bool:  # noqa: FBT001  passed on
    """Return *argument* or, where it is None, whether the environment *variable* is ``1``.

    Unset, empty and ``0`` mean off.

    Raises:
        SettingsError: the variable has another value.
    """
    if argument is not None:
        return argument
    value = os.environ.get(variable, "")
    if value not in {"", "0", "1"}:
        raise SettingsError(f"{variable}={value!r} is neither on nor off", "set it to 1 or to 0")
    return value == "1"
