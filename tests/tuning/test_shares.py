"""Shares of the problems of a document: disjoint, complete, balanced, and the same everywhere."""

from __future__ import annotations

import pytest
from sample_tables import make_key

from warmup.core.errors import NothingRecordedError, SettingsError
from warmup.diagnostics.misses import MissedProblem
from warmup.tuning.missed_build import share_of


def test_the_shares_are_disjoint_complete_balanced_and_stable() -> None:
    """For any N; two problems of a key stay together, and the document's order says nothing."""
    problems = [
        MissedProblem(make_key(size), "gemm", reason, 1)
        for size in range(16, 16 * 102, 16)
        for reason in ("not_in_table", "untrusted")
    ]
    other = problems[::-1]
    for count in (1, 2, 3, 7, 101):
        shares = [share_of(problems, f"{number}/{count}") for number in range(1, count + 1)]
        together = [each for share in shares for each in share]
        assert len(together) == len(problems), count
        assert set(together) == set(problems), count
        keys = [{each.key for each in share} for share in shares]
        assert sum(map(len, keys)) == 101, count
        assert max(map(len, keys)) - min(map(len, keys)) <= 1, count
        for number, share in enumerate(shares, 1):
            assert set(share_of(other, f"{number}/{count}")) == set(share), (number, count)


def test_a_share_depends_on_the_key_alone() -> None:
    """These keys stood in these shares when the hash was chosen; machines agree by it."""
    problems = [MissedProblem(make_key(size), "gemm", "not_in_table", 1) for size in (16, 32, 64)]
    assert {each.key for each in share_of(problems, "1/3")} == {make_key(32)}


def test_an_empty_share_and_a_wrong_one_are_errors() -> None:
    """More shares than problems leave some without any; I is from 1 to N."""
    problem = MissedProblem("a", "gemm", "not_in_table", 1)
    with pytest.raises(NothingRecordedError, match="2/2 is empty: the document has 1 problem"):
        share_of([problem], "2/2")
    for wrong in ("0/2", "3/2", "1", "1/0", "/", "a/b", "-1/2", "1/2/3", " 1/2", "1/1000000"):
        with pytest.raises(SettingsError, match="is no share of the problems"):
            share_of([problem], wrong)
