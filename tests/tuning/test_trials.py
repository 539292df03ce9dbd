"""What a build asks the child program that measures."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from warmup.core.rows import Evidence, Family, Row, Timing, Tuned, Winner
from warmup.core.trial import Region
from warmup.tuning.trials import challengers

MM = "mm m={} n=512 k=256 bf16 a=row b=row out=bf16 | epilogue={}"
LIBRARY = Winner(Family.EXTERN, "aten::mm")


def template(block: int) -> Winner:
    return Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", block),), "0123")


def beside(*flops: int) -> Region:
    """Return a region of a product of 100 operations, and of others with *flops*."""
    return Region(inputs=(), steps=(), outputs=(), flops=(100, *flops))


def asked(region: Region, whole_us: float | None) -> list[object]:
    """Return the tiles asked for: alone the library's kernel takes 10 us, tile 16 takes 16 us."""
    times_us: dict[Winner, float | None] = {template(n): float(n) for n in (64, 8, 12, 16)}
    times_us |= {LIBRARY: 10.0, template(128): None}
    evidence = Evidence(time_us=8, library_us=10, runner_up=None, runner_up_us=None, tried=6)
    timings = tuple(Timing(winner, time_us) for winner, time_us in times_us.items())
    bare = Tuned(MM, Row(template(8), evidence), timings)
    return [dict(one.kwargs)["BLOCK_M"] for one in challengers(bare, LIBRARY, region, whole_us)]


def test_who_takes_longer_alone_than_all_of_the_region_is_left_out() -> None:
    """What a kernel takes into itself cannot make it faster than it is alone; fastest first."""
    assert asked(beside(), 15.0) == [8, 12]


def test_another_product_of_the_region_is_saved_by_none() -> None:
    """It takes four fifths of what its operations suggest: 32 of 46 us, which leaves 14."""
    assert asked(beside(400), 46.0) == [8, 12]


def test_a_guess_that_leaves_out_the_library_is_not_used() -> None:
    """Within 20 us there is no room for 10 and 32; the other product takes less than that."""
    assert asked(beside(400), 20.0) == [8, 12, 16]


def test_who_is_faster_alone_is_asked_whatever_the_region_took() -> None:
    """A region faster than the product in it was timed when the device had less to do."""
    assert asked(beside(), 5.0) == [8]


def test_a_region_without_a_time_leaves_out_nobody() -> None:
    """Every candidate that has a time alone is asked."""
    assert asked(beside(), None) == [8, 12, 16, 64]
