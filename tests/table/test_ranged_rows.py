"""A ranged row answers its range only: no other range, and no size of the range."""

from __future__ import annotations

import pytest
from sample_tables import make_key, make_row

from warmup.core.events import Emitter
from warmup.core.miss_reasons import MissReason
from warmup.table.lookup import Lookup, OnMiss


@pytest.fixture
def lookup() -> Lookup:
    """A lookup over one row, for m from 257 to 560."""
    return Lookup({make_key("257..560"): make_row()}, OnMiss.FALLBACK, Emitter([]))


def test_the_same_range_is_answered(lookup: Lookup) -> None:
    assert lookup.find(make_key("257..560")) == make_row().winner


@pytest.mark.parametrize("m", ["257..559", "258..560", "257..1024", "2..560", "257..", "561..1024"])
def test_another_range_is_a_miss(lookup: Lookup, m: str) -> None:
    assert lookup.find(make_key(m)) is MissReason.DYNAMIC_DIM


@pytest.mark.parametrize("m", [257, 408, 560])
def test_a_size_of_the_range_is_a_miss(lookup: Lookup, m: int) -> None:
    """A static graph asks for a single size, which is another key."""
    assert lookup.find(make_key(m)) is MissReason.NOT_IN_TABLE
