"""What a build says before it tunes."""

from __future__ import annotations

import pytest

from warmup.buckets.bucket import parse_buckets
from warmup.cli.progress import BuildProgress


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ("seqlen=16,32", "2 buckets, of at most 4096"),
        ("batch=1,8;seqlen=16..64", "6 buckets (batch 2 x seqlen 3), of at most 4096"),
    ],
)
def test_the_number_of_buckets_is_said(
    capsys: pytest.CaptureFixture[str], dims: str, said: str
) -> None:
    """With the sizes of each dim where they multiply, and the limit."""
    with BuildProgress() as progress:
        progress.buckets_counted(parse_buckets(None, dims))
    assert said in capsys.readouterr().err.splitlines()


def test_one_bucket_is_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to say."""
    with BuildProgress() as progress:
        progress.buckets_counted(parse_buckets("16", None))
    assert "bucket" not in capsys.readouterr().err
