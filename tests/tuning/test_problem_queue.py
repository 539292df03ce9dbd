"""The queue of a build on several devices, and shares of its problems."""

from __future__ import annotations

import pytest
from sample_tables import make_key

from warmup.core.errors import NothingRecordedError, SettingsError
from warmup.serving.audit import MissedProblem
from warmup.tuning.devices import ProblemQueue
from warmup.tuning.problems import share_of

BOTH = {"cuda:0", "cuda:1"}


def test_problems_are_taken_in_order() -> None:
    queue = ProblemQueue("ab")
    assert [queue.take("cuda:0", BOTH) for _ in range(3)] == ["a", "b", None]


def test_a_lost_problem_goes_to_another_device_if_there_is_one() -> None:
    """The device that lost a key takes the one after it; the other device takes the lost key."""
    queue = ProblemQueue("abc")
    first = queue.take("cuda:0", BOTH)
    assert first is not None
    assert queue.lose(first, "cuda:0", "was killed")
    assert queue.take("cuda:0", BOTH) == "b"
    assert queue.take("cuda:1", BOTH) == "a"
    # A host with one device left gives it the key that it lost.
    queue = ProblemQueue("a")
    assert queue.take("cuda:0", set()) == "a"
    queue.lose("a", "cuda:0", "was killed")
    assert queue.take("cuda:0", BOTH) is None
    assert queue.take("cuda:0", {"cuda:0"}) == "a"  # its second worker is no other device


def test_a_key_that_is_lost_twice_fails_with_both_reasons() -> None:
    """It does not wait any more, and the report names each device and what happened there."""
    queue = ProblemQueue("a")
    for device, reason, goes_on in (("cuda:0", "hung", True), ("cuda:1", "was killed", False)):
        assert queue.take(device, BOTH) == "a"
        assert queue.lose("a", device, reason) is goes_on
    assert len(queue) == 0
    assert queue.failed == {"a": "the worker on cuda:0 hung; then the worker on cuda:1 was killed"}


def test_what_no_device_is_left_for_fails() -> None:
    """Every key that waits fails with the reason, and a key that was lost before says that too."""
    queue = ProblemQueue("ab")
    queue.take("cuda:0", set())
    queue.lose("a", "cuda:0", "hung")
    queue.fail_rest("no device is left")
    assert queue.failed == {
        "a": "no device is left; the worker on cuda:0 hung",
        "b": "no device is left",
    }


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
