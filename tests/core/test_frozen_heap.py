"""Garbage collections look at a compile's own objects while it is under way."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from warmup.core.frozen_heap import frozen_heap


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_older_objects_are_out_of_sight_while_it_is_open() -> None:
    """A list that existed before is no object of the collector, and is one again afterwards."""
    before: list[object] = [[]]
    with frozen_heap():
        inside: list[object] = [[]]
        seen = {id(each) for each in gc.get_objects()}
        assert id(before) not in seen
        assert id(inside) in seen
    assert id(before) in {id(each) for each in gc.get_objects()}
    assert gc.get_freeze_count() == 0


def test_the_last_of_several_thaws() -> None:
    """Buckets that compile in several threads are one freeze."""
    with frozen_heap():
        with frozen_heap():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_what_a_caller_has_frozen_stays_frozen() -> None:
    """A server that freezes its heap before it forks keeps it so.

    Single frozen objects may still die by their counts of references, so no count is compared.
    """
    before: list[object] = [[]]
    gc.freeze()
    with frozen_heap():
        pass
    assert id(before) not in {id(each) for each in gc.get_objects()}


def test_an_error_thaws_too() -> None:
    """A compile that fails leaves the collector as it was."""
    with pytest.raises(ValueError, match="compile"), frozen_heap():
        raise ValueError("compile")
    assert gc.get_freeze_count() == 0
