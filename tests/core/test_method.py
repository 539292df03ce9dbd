"""Switches of a variable, and the counts of a search: sums, one line, and JSON."""

from __future__ import annotations

import json

import pytest

from warmup.core.errors import SettingsError
from warmup.core.rows import (
    CandidateSource,
    Resource,
    Search,
    SearchCounts,
    read_flag,
    search_to_json,
)

COUNTS = SearchCounts(
    search=Search.WIDE,
    listed=18,
    added=((CandidateSource.TMA, 7), (CandidateSource.TILES, 3)),
    pruned=((Resource.SHARED_MEMORY, 25),),
    spilling=1,
)


def test_counts_are_one_line_and_plain_json() -> None:
    """The text has the search and every count above zero."""
    assert str(COUNTS) == "wide: 18 listed, 7 tma, 3 tiles, 25 pruned by shared_memory, 1 spilling"
    assert str(SearchCounts(search=Search.DEFAULT, listed=2)) == "default: 2 listed"
    # A search is written as plain json.
    assert json.loads(json.dumps(search_to_json(COUNTS))) == {
        "search": "wide",
        "listed": 18,
        "added": {"tma": 7, "tiles": 3},
        "pruned": {"shared_memory": 25},
        "spilling": 1,
        "left_out": 0,
    }


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
