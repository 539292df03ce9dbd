"""A row of a range answers that range, and nothing inside or around it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from warmup.core.events import Emitter
from warmup.core.rows import MissReason, Row
from warmup.table.lookup import Lookup, OnMiss


@pytest.fixture
def lookup(make_row: Callable[..., Row], make_key: Callable[..., str]) -> Lookup:
    """A lookup over one row, for m from 257 to 560."""
    return Lookup({make_key("257..560"): make_row()}, OnMiss.FALLBACK, Emitter([]))


def test_its_own_range_is_answered(
    lookup: Lookup, make_row: Callable[..., Row], make_key: Callable[..., str]
) -> None:
    """The key is the interval as spelled."""
    assert lookup.find(make_key("257..560")) == make_row().winner


@pytest.mark.parametrize("m", ["257..559", "258..560", "257..1024", "2..560", "257..", "561..1024"])
def test_another_range_is_not(lookup: Lookup, make_key: Callable[..., str], m: str) -> None:
    """Not one within it, nor one around it, nor the next."""
    assert lookup.find(make_key(m)) is MissReason.DYNAMIC_DIM


@pytest.mark.parametrize("m", [257, 408, 560])
def test_a_size_of_it_is_not(lookup: Lookup, make_key: Callable[..., str], m: int) -> None:
    """A static graph asks for its size, of which nothing was measured."""
    assert lookup.find(make_key(m)) is MissReason.NOT_IN_TABLE
