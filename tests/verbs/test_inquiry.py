"""What a build asks the child program that measures."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from warmup.inquiry import at_bucket

MM = "mm m={} n=512 k=256 bf16 a=row b=row out=bf16 | epilogue={}"


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        (MM.format("33..64", "none"), MM.format("64", "none")),
        (MM.format("33..64", "mul(bf16[s,512])"), MM.format("64", "mul(bf16[64,512])")),
        (MM.format("64", "mul(bf16[64,512])"), MM.format("64", "mul(bf16[64,512])")),
    ],
)
def test_a_region_asks_for_the_size_of_its_bucket(key: str, asked: str) -> None:
    """The upper end takes the place of the range, and of dynamic sizes in what follows."""
    assert at_bucket(key) == asked


@pytest.mark.parametrize(
    "key",
    [
        MM.format("2..", "relu"),
        "bmm batch=2..8 m=33..64 n=512 k=256 bf16 a=row b=row out=bf16 | epilogue=relu",
    ],
)
def test_a_key_without_one_bucket_stays(key: str) -> None:
    """An open range has no size, and of two it is not known which is meant."""
    assert at_bucket(key) == key
