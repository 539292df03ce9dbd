"""The terms that constants are applied to, on a device of 132 multiprocessors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from warmup.prediction.features import CandidateConfig, GemmSizes
from warmup.prediction.formula import terms_of

Sized = Callable[[int, int, int], GemmSizes]
SMS = 132
L2_BYTES, MEMORY_BYTES = 1, 2  # among the terms


def _terms(sizes: GemmSizes, rows: int, uid: str = "triton::mm") -> tuple[float, ...]:
    (terms,) = terms_of(sizes, CandidateConfig(uid, rows, 64, 64, 8, 3, 4), SMS)
    return terms


def _bytes_of_operands(sizes: GemmSizes) -> int:
    return 2 * (sizes.m * sizes.k + sizes.n * sizes.k + sizes.m * sizes.n)


def test_rows_that_a_matmul_lacks_are_not_read(sized: Sized) -> None:
    """With 8 rows a tile of 64 reads as many bytes as a tile of 16, which is as many blocks."""
    wide, narrow = (_terms(sized(8, 4096, 1024), rows) for rows in (64, 16))
    assert wide[L2_BYTES] == narrow[L2_BYTES]
    assert _terms(sized(64, 4096, 1024), 64)[L2_BYTES] > wide[L2_BYTES]


@pytest.mark.parametrize(
    ("n", "share"),
    [
        pytest.param(64 * 66, 0.5, id="half of the multiprocessors have a block"),
        pytest.param(64 * 132, 1.0, id="each has a block"),
        pytest.param(64 * 198, 1.0, id="half of them have two, which run at a time"),
    ],
)
def test_memory_is_as_busy_as_the_multiprocessors_that_have_a_block(
    sized: Sized, n: int, share: float
) -> None:
    """Where all blocks run at a time, a second block on some multiprocessors costs no share."""
    sizes = sized(8, n, 1024)
    assert _terms(sizes, 16)[MEMORY_BYTES] == _bytes_of_operands(sizes) / share


def test_blocks_that_wait_for_others_leave_memory_idle_at_the_end(sized: Sized) -> None:
    """A persistent kernel runs a block at a time: 198 blocks are two waves, three quarters full."""
    sizes = sized(8, 64 * 198, 1024)
    terms = _terms(sizes, 16, uid="triton::mm_persistent_tma")
    assert terms[MEMORY_BYTES] == _bytes_of_operands(sizes) / 0.75
