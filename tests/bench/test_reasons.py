"""The one-line reason of an error in a report."""

from __future__ import annotations

import pytest

from warmup.bench.reasons import reason_of
from warmup.core.errors import SettingsError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no such kernel\nmore"), "ValueError: no such kernel"),
        (RuntimeError("\n  the row is too long\n  at line 3"), "RuntimeError: the row is too long"),
        (RuntimeError(""), "RuntimeError:"),
        (SettingsError("no layer", "name one"), "no layer; name one"),
    ],
)
def test_a_reason_is_the_first_line_with_text(error: Exception, reason: str) -> None:
    """Some compilers' errors begin with an empty line; a warmup error has no type in front."""
    assert reason_of(error) == reason
