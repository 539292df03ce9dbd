"""Dynamic dims, their bucket sizes, and the intervals between the sizes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core.buckets import (
    DynamicDim,
    Interval,
    intervals_of,
    parse_bucket_sizes,
    parse_buckets,
    parse_dynamic_dims,
    with_ranges,
)
from warmup.core.errors import SettingsError

SEQLEN = parse_dynamic_dims({"x": {0: "seqlen"}})


def test_dims_are_named_by_number_or_in_order() -> None:
    """A mapping names dims by number; in a sequence, numbers and None are dims that are static."""
    dims = parse_dynamic_dims({"x": {1: "seqlen"}, "batch.0.mask": ("rows", None, 7, "seqlen")})
    assert dims == (
        DynamicDim("seqlen", ("x",), 1),
        DynamicDim("rows", ("batch", 0, "mask"), 0),
        DynamicDim("seqlen", ("batch", 0, "mask"), 3),
    )
    assert str(dims[2]) == "batch.0.mask[3]=seqlen"


def test_dims_without_a_dynamic_dim_are_refused() -> None:
    for dims, message in (
        ({}, "no dynamic dim"),
        ({"x": (None, 3)}, "no dynamic dim"),
        ({"x": {-1: "seqlen"}}, "count dims from 0"),
        ({"x": {True: "seqlen"}}, "count dims from 0"),
        ({"x": {0: "a dim"}}, "cannot be its name"),
        ({"x": {0: 7}}, "cannot be its name"),
        ({"0": {0: "seqlen"}}, "cannot be its name"),
    ):
        with pytest.raises(SettingsError, match=message):
            parse_dynamic_dims(dims)


def test_sizes_are_given_by_name_in_any_order() -> None:
    """The sizes of a single dim may be given without its name, as text or as numbers."""
    assert parse_bucket_sizes(SEQLEN, "16,256") == {"seqlen": (16, 256)}
    assert parse_bucket_sizes(SEQLEN, (16, 256)) == {"seqlen": (16, 256)}
    # The order in which the sizes are given does not matter.
    dims = parse_dynamic_dims({"x": ("rows", "seqlen")})
    sizes = parse_bucket_sizes(dims, {"seqlen": "16,256", "rows": "1,8"})
    assert list(sizes.items()) == [("rows", (1, 8)), ("seqlen", (16, 256))]


def test_bucket_sizes_that_cannot_be_used_are_refused() -> None:
    """Sizes must ascend, belong to the dims, and not be too many."""
    for buckets, message in (
        ("256,16", "16 follows 256"),
        ((16, 16), "more than once"),
        ((16, 0), "not a positive integer"),
        ({"rows": "1"}, "rows, seqlen"),
        ({}, "seqlen"),
        (range(1, 5000), "more than 4096"),
    ):
        with pytest.raises(SettingsError, match=message):
            parse_bucket_sizes(SEQLEN, buckets)


def test_size_one_has_an_interval_of_its_own() -> None:
    """torch.compile makes another artifact for size 1, so no interval joins it to others."""
    assert intervals_of((16, 256)) == (Interval(1, 1), Interval(2, 16), Interval(17, 256))
    assert intervals_of((1, 16)) == (Interval(1, 1), Interval(2, 16))


@given(st.sets(st.integers(1, 60), min_size=1))
def test_intervals_are_disjoint_and_leave_nothing_out(sizes: set[int]) -> None:
    """The intervals cover every size from 1 to the last once, and end at the buckets."""
    intervals = intervals_of(tuple(sorted(sizes)))
    covered = [range(interval.low, interval.high + 1) for interval in intervals]
    assert list(itertools.chain(*covered)) == list(range(1, max(sizes) + 1))
    assert {interval.high for interval in intervals} - {1} == sizes - {1}


def test_buckets_get_ranges_from_the_buckets_before_them() -> None:
    """The result is every combination of the dims' intervals, with size 1 on its own."""
    buckets = with_ranges(parse_buckets("4,16", "batch=1,8"))
    assert list(map(str, buckets)) == [
        *("batch=1,seqlen=1", "batch=1,seqlen=2..4", "batch=1,seqlen=5..16"),
        *("batch=2..8,seqlen=1", "batch=2..8,seqlen=2..4", "batch=2..8,seqlen=5..16"),
    ]


def test_buckets_that_cannot_have_ranges_are_refused() -> None:
    """Buckets whose sizes descend, or that are not every combination, have no clear ranges."""
    for seqlens, dims, message in (
        ("64,16", None, "buckets seqlen: 16 follows 64"),
        ("2..16,10..32", None, "buckets seqlen: 10 follows 16"),
        (None, ["n=16,64", "n=32"], "buckets n: 32 follows 64"),
        (None, "a=1,2;b=8,4", "buckets b: 4 follows 8"),
        (None, ["a=1;b=4", "a=8;b=16"], "2 buckets are not every combination of their sizes, 4"),
        (None, ["a=1;b=4", "a=2"], "2 buckets are not every combination"),
    ):
        with pytest.raises(SettingsError, match=message):
            with_ranges(parse_buckets(seqlens, dims))
