"""The queue of a build on several devices: who takes what, and what a lost worker costs."""

from __future__ import annotations

from warmup.tuning.devices.build import ProblemQueue

BOTH = {"cuda:0", "cuda:1"}


def test_problems_are_taken_in_order() -> None:
    queue = ProblemQueue("ab")
    assert [queue.take("cuda:0", BOTH) for _ in range(3)] == ["a", "b", None]


def test_a_lost_problem_comes_next_and_goes_to_another_device() -> None:
    """The device that lost a key takes the one after it; the other device takes the lost key."""
    queue = ProblemQueue("abc")
    first = queue.take("cuda:0", BOTH)
    assert first is not None
    assert queue.lose(first, "cuda:0", "was killed")
    assert queue.take("cuda:0", BOTH) == "b"
    assert queue.take("cuda:1", BOTH) == "a"


def test_without_another_device_the_same_one_takes_it_again() -> None:
    """A host with one device left gives it the key that it lost."""
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
