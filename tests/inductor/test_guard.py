"""`Guard` and `Artifact`: the sizes at which they hold."""

from __future__ import annotations

from collections.abc import Callable

from warmup.inductor.guards import Artifact, Guard


def make(holds: Callable[[int], bool], *, is_linear: bool = True) -> Guard:
    return Guard("spelled", holds, is_linear, None)


def test_guards_end_exactly() -> None:
    """A guard that is not linear is evaluated size by size, up to the ceiling.

    One on multiples of 8 holds at a single size, and again at others.
    """
    linear: list[tuple[Callable[[int], bool], tuple[int, int | None]]] = [
        (lambda size: size <= 1280, (0, 1280)),
        (lambda size: size > 1280, (1281, None)),
        (lambda size: size == 2048, (2048, 2048)),
        (lambda size: 1024 * size <= 2**31 - 1, (0, 2097151)),
        (lambda _: True, (0, None)),
    ]
    for holds, interval in linear:
        assert make(holds).interval(2048 if holds(2048) else 560, 4096) == interval, interval
    assert make(lambda size: size % 8 == 0, is_linear=False).interval(16, 64) is None
    guard = make(lambda size: 10 < size * size < 1000, is_linear=False)
    assert (guard.interval(16, 64), guard.interval(16, 31)) == ((4, 31), (4, None))


def test_an_artifact_serves_where_every_guard_holds() -> None:
    artifact = Artifact(0, 16, (make(lambda size: size > 2), make(lambda size: size < 20)))
    assert [size for size in (2, 3, 19, 20) if artifact.serves(size)] == [3, 19]
