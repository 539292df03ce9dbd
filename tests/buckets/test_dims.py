"""Axes, ladders of bucket sizes, and the intervals between them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.buckets.bucket import Bucket, parse_buckets
from warmup.buckets.dims import (
    DynamicDim,
    Interval,
    intervals_of,
    ladders_of,
    parse_axes,
    parse_ladders,
    widened,
)
from warmup.core.errors import SettingsError

SEQLEN = parse_axes({"x": {0: "seqlen"}})


def test_axes_are_named_by_position_or_in_order() -> None:
    """A mapping names dims by number; in a sequence numbers and None stay as they are."""
    axes = parse_axes({"x": {1: "seqlen"}, "batch.0.mask": ("rows", None, 7, "seqlen")})
    assert axes == (
        DynamicDim("seqlen", ("x",), 1),
        DynamicDim("rows", ("batch", 0, "mask"), 0),
        DynamicDim("seqlen", ("batch", 0, "mask"), 3),
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


def test_buckets_are_widened_down_to_the_ones_before() -> None:
    """Every combination of the intervals of their dims, each of which has size 1 apart."""
    buckets = widened(parse_buckets("4,16", "batch=1,8"))
    assert list(map(str, buckets)) == [
        *("batch=1,seqlen=1", "batch=1,seqlen=2..4", "batch=1,seqlen=5..16"),
        *("batch=2..8,seqlen=1", "batch=2..8,seqlen=2..4", "batch=2..8,seqlen=5..16"),
    ]


@pytest.mark.parametrize(
    ("seqlens", "dims", "said"),
    [
        ("64,16", None, "buckets seqlen: 16 follows 64"),
        ("2..16,10..32", None, "buckets seqlen: 10 follows 16"),
        (None, ["n=16,64", "n=32"], "buckets n: 32 follows 64"),
        (None, "a=1,2;b=8,4", "buckets b: 4 follows 8"),
        (None, ["a=1;b=4", "a=8;b=16"], "2 buckets are not every combination of their sizes, 4"),
        (None, ["a=1;b=4", "a=2"], "2 buckets are not every combination"),
    ],
)
def test_buckets_that_cannot_be_widened_are_refused(
    seqlens: str | None, dims: Any, said: str
) -> None:
    """Those that descend or overlap, and those that are no product: which range is meant?"""
    with pytest.raises(SettingsError, match=said):
        widened(parse_buckets(seqlens, dims))


def test_a_size_given_twice_is_refused_before() -> None:
    """For buckets of any policy."""
    with pytest.raises(SettingsError, match="16 is given more than once"):
        parse_buckets("4..16,16", None)


def test_the_sizes_of_each_dim_are_its_ladder() -> None:
    """In the order of the dims, of buckets that are their product."""
    buckets = [Bucket((("a", a), ("b", b))) for a in (1, 8) for b in (4, 16, 64)]
    assert ladders_of(buckets) == {"a": (1, 8), "b": (4, 16, 64)}
