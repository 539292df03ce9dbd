"""The table of a start's phases."""

from __future__ import annotations

from warmup.buckets.bucket import Bucket
from warmup.cli.phase_render import columns_by_bucket, phase_grid
from warmup.core.phases import Phase


def test_a_table_has_a_row_for_each_phase_that_was_entered() -> None:
    """In the order of a start, with a dash where a column did not enter a phase, and the sums."""
    columns = {
        "one": {Phase.OTHER: 0.001, Phase.AOT: 1.5},
        "two": {Phase.IMPORT: 12.25, Phase.OTHER: 0.5},
    }
    assert list(phase_grid(columns, indent=2)) == [
        "  seconds   one    two",
        "  import      -  12.25",
        "  AOT      1.50      -",
        "  other    0.00   0.50",
        "  all      1.50  12.75",
    ]


def test_columns_without_room_follow_in_another_table() -> None:
    """Every bucket has its column, in order, and no line is longer than 80."""
    buckets = [Bucket((("batch", 4), ("seqlen", size))) for size in range(100, 107)]
    columns = columns_by_bucket(
        {Phase.IMPORT: 2.0}, [(bucket, {Phase.WAITING_FOR_KERNELS: 0.5}) for bucket in buckets]
    )
    lines = list(phase_grid(columns, indent=10))
    heads = [line.split()[1:] for line in lines if line.split()[:1] == ["seconds"]]
    assert [name for head in heads for name in head] == ["all", "before", *map(str, buckets)]
    assert len(heads) == 4
    assert max(map(len, lines)) <= 80


def test_the_whole_start_is_the_sum_of_its_columns() -> None:
    """Before the first bucket, and every bucket."""
    bucket = Bucket((("seqlen", 16),))
    columns = columns_by_bucket({Phase.AOT: 1.0}, [(bucket, {Phase.AOT: 2.0, Phase.OTHER: 4.0})])
    assert columns["all"] == {Phase.AOT: 3.0, Phase.OTHER: 4.0}
