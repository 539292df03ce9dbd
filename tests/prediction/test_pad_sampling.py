"""Random unaligned GEMMs: different ones, reproducible, of the stated distribution."""

from __future__ import annotations

import itertools
import re

import pytest

from warmup.core.errors import SettingsError
from warmup.keys.pad import PadProblem
from warmup.keys.pad_text import parse_padding
from warmup.prediction.pad.sampling import MOST_OPERATIONS, draw_pad_keys, parse_dtypes

DTYPES = ("f16", "bf16", "f32")


def drawn(count: int, seed: int = 1, dtypes: tuple[str, ...] = DTYPES) -> list[str]:
    return [*itertools.islice(draw_pad_keys(seed, dtypes), count)]


@pytest.fixture(scope="module")
def problems() -> list[PadProblem]:
    """Two thousand samples."""
    return [parse_padding(key) for key in drawn(2000)]


def test_fewer_samples_are_the_first_of_more() -> None:
    """So that a file can be completed; another seed draws others, and none is drawn twice."""
    assert drawn(20) == drawn(50)[:20]
    assert drawn(20) != drawn(20, seed=2)
    assert len(set(drawn(500))) == 500


def test_every_sample_needs_padding_and_fits(problems: list[PadProblem]) -> None:
    """No size is aligned with all others; operands and result take at most 8 GiB."""
    for one in problems:
        m, n, k = one.m.low, one.n.low, one.k.low
        size = 4 if one.dtype == "f32" else 2
        assert any(each * size % 16 for each in (m, n, k))
        assert (m * k + k * n + m * n) * size <= 8 * 2**30


def test_samples_that_are_measured_have_limited_operations() -> None:
    """Each can be tuned in seconds; without the limit most cannot."""

    def large(keys: list[str]) -> int:
        problems = [parse_padding(key) for key in keys]
        return sum(
            2 * one.m.low * one.n.low * one.k.low > MOST_OPERATIONS[one.dtype] for one in problems
        )

    limited = draw_pad_keys(1, DTYPES, most_operations=MOST_OPERATIONS)
    assert large([*itertools.islice(limited, 500)]) == 0
    assert large(drawn(500)) > 200


def test_free_operands_and_precisions_are_those_stated(problems: list[PadProblem]) -> None:
    """Only contiguous operands are free, a fifth of them; half of f32 is multiplied as tf32."""
    rows = [(one, letter) for one in problems for letter in "ab"]
    rows = [(one, letter) for one, letter in rows if str(getattr(one, letter)) == "row"]
    free = [(one, letter) for one in problems for letter in one.free]
    assert set(free) <= set(rows)
    assert 0.15 < len(free) / len(rows) < 0.25
    wide = [one.fp32 for one in problems if one.dtype == "f32"]
    assert 0.4 < wide.count("tf32") / len(wide) < 0.6
    assert {one.fp32 for one in problems if one.dtype != "f32"} == {None}


def test_half_of_the_samples_are_near_powers_of_two(problems: list[PadProblem]) -> None:
    """Uniform sizes are rarely powers of two: some two in ten samples have two powers or more."""
    powers = [
        sum(each.low & (each.low - 1) == 0 for each in (one.m, one.n, one.k)) for one in problems
    ]
    assert 0.2 < sum(count >= 2 for count in powers) / len(problems) < 0.5


def test_a_size_of_one_has_the_layout_that_its_key_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns are the same there, and inductor's question says rows."""
    monkeypatch.setattr("warmup.prediction.pad.sampling._LARGEST_SAMPLE", 2)
    keys = drawn(10, dtypes=("bf16",))
    ones = [key for key in keys if re.search(r" m=1 | k=1 ", key)]
    assert ones
    assert all(" a=row " in key for key in ones)


def test_samples_that_cannot_be_drawn_are_an_error() -> None:
    """Nothing is as small as that, and the search ends."""
    with pytest.raises(SettingsError, match="no further GEMM"):
        next(draw_pad_keys(1, DTYPES, most_gib=0.0))


@pytest.mark.parametrize("text", ["f8", "bf16,", "bf16,i8"])
def test_other_dtypes_are_refused(text: str) -> None:
    """With the dtypes that are sampled."""
    with pytest.raises(SettingsError, match="use any of f16,bf16,f32"):
        parse_dtypes(text)
