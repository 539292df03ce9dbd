"""Axes, ladders of bucket sizes, and the intervals between them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.axis import Axis, Interval, intervals_of, parse_axes, parse_ladders
from warmup.errors import SettingsError

SEQLEN = parse_axes({"x": {0: "seqlen"}})


def test_axes_are_named_by_position_or_in_order() -> None:
    """A mapping names dims by number; in a sequence numbers and None stay as they are."""
    axes = parse_axes({"x": {1: "seqlen"}, "batch.0.mask": ("rows", None, 7, "seqlen")})
    assert axes == (
        Axis("seqlen", ("x",), 1),
        Axis("rows", ("batch", 0, "mask"), 0),
        Axis("seqlen", ("batch", 0, "mask"), 3),
    )
    assert str(axes[2]) == "batch.0.mask[3]=seqlen"


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ({}, "no dynamic dim"),
        ({"x": (None, 3)}, "no dynamic dim"),
        ({"x": {-1: "seqlen"}}, "count dims from 0"),
        ({"x": {True: "seqlen"}}, "count dims from 0"),
        ({"x": {0: "a dim"}}, "cannot be its name"),
        ({"x": {0: 7}}, "cannot be its name"),
        ({"0": {0: "seqlen"}}, "cannot be its name"),
    ],
)
def test_what_names_no_axis_is_refused(dims: Any, said: str) -> None:
    """With the input that it is about, and what to write."""
    with pytest.raises(SettingsError, match=said):
        parse_axes(dims)


def test_one_dim_needs_no_name() -> None:
    """Its sizes may be given alone, as text or as numbers."""
    assert parse_ladders(SEQLEN, "16,256") == {"seqlen": (16, 256)}
    assert parse_ladders(SEQLEN, (16, 256)) == {"seqlen": (16, 256)}


def test_several_dims_are_in_the_order_of_the_axes() -> None:
    """Whatever the order in which their sizes are given."""
    axes = parse_axes({"x": ("rows", "seqlen")})
    ladders = parse_ladders(axes, {"seqlen": "16,256", "rows": "1,8"})
    assert list(ladders.items()) == [("rows", (1, 8)), ("seqlen", (16, 256))]


@pytest.mark.parametrize(
    ("buckets", "said"),
    [
        ("256,16", "16 follows 256"),
        ((16, 16), "more than once"),
        ((16, 0), "not a positive integer"),
        ({"rows": "1"}, "rows, seqlen"),
        ({}, "seqlen"),
        (range(1, 5000), "more than 4096"),
    ],
)
def test_ladders_that_cannot_be_used_are_refused(buckets: Any, said: str) -> None:
    """They ascend, name the dims that there are, and are not too many."""
    with pytest.raises(SettingsError, match=said):
        parse_ladders(SEQLEN, buckets)


def test_sizes_without_a_name_are_refused_for_two_dims() -> None:
    """Which of them is meant nobody knows."""
    with pytest.raises(SettingsError, match="without names"):
        parse_ladders(parse_axes({"x": ("rows", "seqlen")}), "16")


def test_size_one_has_an_interval_of_its_own() -> None:
    """torch.compile makes another artifact for it."""
    assert intervals_of((16, 256)) == (Interval(1, 1), Interval(2, 16), Interval(17, 256))
    assert intervals_of((1, 16)) == (Interval(1, 1), Interval(2, 16))


def test_an_interval_is_spelled_as_a_range() -> None:
    """As the sizes of a dynamic dim in a key; one size alone is that size."""
    assert list(map(str, intervals_of((2, 5)))) == ["1", "2", "3..5"]


@given(st.sets(st.integers(1, 60), min_size=1))
def test_intervals_are_disjoint_and_leave_nothing_out(sizes: set[int]) -> None:
    """Together they are all sizes from 1 to the last, each once, and end at the buckets."""
    intervals = intervals_of(tuple(sorted(sizes)))
    covered = [range(one.low, one.high + 1) for one in intervals]
    assert list(itertools.chain(*covered)) == list(range(1, max(sizes) + 1))
    assert {one.high for one in intervals} - {1} == sizes - {1}
