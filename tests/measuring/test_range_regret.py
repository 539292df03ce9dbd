"""The winner of a range: the winner at its largest size, unless its regret below is too high."""

from __future__ import annotations

from dataclasses import replace

from sample_trials import LIBRARY, template, timed

from warmup.core.rows import Method, Rejection, Winner
from warmup.core.trial import Outcome, Tuned
from warmup.measuring.selection import (
    MOST_RIVALS,
    REGRET_BOUND,
    SizeOutcomes,
    is_within_bound,
    make_row,
    rivals_of,
    select_for_range,
    with_bare_range_regret,
    with_range_regret,
    worst_regret_over_bound,
)

KEY = "mm m=257..560 n=1280 k=3420 bf16 a=row b=col out=bf16 | epilogue=none"
METHOD = Method()
LARGE, SMALL = template(128), template(32)


def failed(winner: Winner, reason: Rejection) -> Outcome:
    return Outcome(winner=winner, rejection=reason, said="because")


def at(size: int, **times_us: float) -> SizeOutcomes:
    """Return the outcomes at a size, with the times of ``large``, ``small`` and ``library``."""
    named = {"large": LARGE, "small": SMALL, "library": LIBRARY}
    return SizeOutcomes(size, [timed(named[name], time_us) for name, time_us in times_us.items()])


def chosen(*places: SizeOutcomes, winner: Winner = LARGE) -> Winner:
    return select_for_range(winner, places, LIBRARY, METHOD)


def test_above_the_bound_the_least_worst_regret_wins() -> None:
    """At a regret of a tenth the winner stays, even if another worst regret is less."""
    low = at(257, large=11.0, small=10.0, library=30.0)
    own = at(560, large=20.0, small=21.0, library=40.0)
    assert chosen(low, own) == LARGE
    # The candidate that is never far behind wins, not the best one at the lower end.
    low = at(257, large=15.0, small=10.0, library=10.8)
    own = at(560, large=20.0, small=30.0, library=21.0)
    assert chosen(low, own) == LIBRARY
    # Of two equal candidates that are better along the range, the library wins.
    low = at(257, large=15.0, small=10.0, library=10.1)
    own = at(560, large=20.0, small=20.8, library=21.2)
    assert chosen(low, own) == LIBRARY
    # A tie does not lead above the bound.
    low = at(257, large=15.0, small=10.9, library=10.0)
    own = at(560, large=20.0, small=20.0, library=22.2)
    assert chosen(low, own) == SMALL
    # At any size the winner may be too slow.
    low = at(257, large=10.0, small=10.0, library=30.0)
    middle = at(408, large=15.0, small=10.0, library=30.0)
    own = at(560, large=20.0, small=21.0, library=40.0)
    assert chosen(low, middle, own) == SMALL


def test_a_candidate_that_fails_or_has_no_time_at_a_size_does_not_win() -> None:
    low = SizeOutcomes(257, [failed(LARGE, Rejection.WRONG), timed(SMALL, 10.0)])
    assert chosen(low, at(560, large=20.0, small=60.0)) == SMALL
    low = SizeOutcomes(
        257, [timed(LARGE, 15.0), failed(SMALL, Rejection.CRASHED), timed(LIBRARY, 10.0)]
    )
    own = at(560, large=20.0, small=20.0, library=21.0)
    assert chosen(low, own) == LIBRARY
    # A candidate not timed at a size does not win.
    low = at(257, large=15.0, library=10.0)
    own = at(560, large=20.0, small=20.0, library=25.0)
    assert chosen(low, own) == LIBRARY


def test_sizes_that_decide_nothing_do_not_count() -> None:
    """A size at which the winner was not run, or has an implausible time, does not count."""
    for low in (
        SizeOutcomes(257, []),
        SizeOutcomes(257, [timed(SMALL, 10.0)]),
        SizeOutcomes(257, [failed(LARGE, Rejection.IMPLAUSIBLE), timed(SMALL, 10.0)]),
    ):
        assert chosen(low, at(560, large=20.0, small=21.0, library=22.0)) == LARGE
    # A winner whose times at the lower end vary by more than it lags behind there stays.
    shaken = timed(LARGE, 95.0, 100.0, 113.0, 125.0, 130.0)
    own = at(560, large=20.0, small=21.0, library=22.0)
    low = SizeOutcomes(257, [shaken, timed(SMALL, 100.0), timed(LIBRARY, 150.0)])
    assert chosen(low, own) == LARGE
    low = SizeOutcomes(257, [timed(LARGE, 113.0), timed(SMALL, 100.0), timed(LIBRARY, 150.0)])
    assert chosen(low, own) == SMALL
    # A size whose control has an unstable time, overlapping with the winner's, does not count.
    shaken = timed(LIBRARY, 8.0, 10.0, 14.0, 18.0)
    low = SizeOutcomes(257, [timed(LARGE, 15.0), timed(SMALL, 10.0), shaken])
    assert chosen(low, at(560, large=20.0, small=21.0, library=22.0)) == LARGE
    # An unstable row keeps the library.
    low = at(257, large=10.0, small=10.0, library=20.0)
    own = SizeOutcomes(560, [timed(LARGE, 20.0), timed(LIBRARY, 15.0, 21.0, 25.0, 30.0)])
    assert chosen(low, own, winner=LIBRARY) == LIBRARY


def test_rivals_are_few_and_have_a_time() -> None:
    """Rivals are the winner, the control and the fastest others, final or only screened."""
    many = [timed(template(16 * i), 10.0 + i, is_final=i < 4) for i in range(1, 20)]
    found = rivals_of([*many, timed(LIBRARY, 99.0)], many[0].winner, LIBRARY)
    assert set(found) == {LIBRARY, *(one.winner for one in many[:MOST_RIVALS])}
    assert found[0] == many[0].winner
    # Neither a rejected candidate nor a library that was no candidate is run again.
    outcomes = [timed(LARGE, 10.0), failed(SMALL, Rejection.LAUNCH)]
    assert rivals_of(outcomes, LARGE, LIBRARY) == [LARGE]


def tuned_along(*places: SizeOutcomes) -> Tuned:
    tuned = make_row(KEY, places[-1].outcomes, LIBRARY, METHOD)
    assert tuned is not None
    return with_range_regret(tuned, places, LIBRARY, METHOD)


def test_a_row_says_how_its_winner_does_along_the_range() -> None:
    """The row has each size with the winner's ratio to the best, None without a time."""
    low = at(257, large=12.0, small=10.0)
    middle = SizeOutcomes(408, [failed(LARGE, Rejection.IMPLAUSIBLE), timed(SMALL, 10.0)])
    own = at(560, large=20.0, small=25.0, library=26.0)
    assert tuned_along(low, middle, own).row.evidence.along == ((257, 1.2), (408, None), (560, 1.0))
    shaken = timed(LIBRARY, 8.0, 10.0, 14.0, 18.0)
    low = SizeOutcomes(257, [timed(LARGE, 15.0), timed(SMALL, 10.0), shaken])
    assert tuned_along(low, own).row.evidence.along == ((257, None), (560, 1.0))  # unstable
    low = at(257, large=12.0, small=10.0)
    timings = {one.winner: one.along_us for one in tuned_along(low, own).timings}
    assert timings == {LARGE: ((257, 12.0),), SMALL: ((257, 10.0),), LIBRARY: ()}


def test_a_reader_sees_which_rows_are_above_the_bound() -> None:
    """The worst size and its ratio follow from the evidence alone."""
    for low_us, expected in (
        (10.0 * (1 + REGRET_BOUND), None),
        (11.2, (257, 1.12)),
        (20.0, (257, 2.0)),
    ):
        places = at(257, large=low_us, small=10.0), at(560, large=20.0, small=25.0)
        assert worst_regret_over_bound(tuned_along(*places).row.evidence) == expected, (
            low_us,
            expected,
        )


RANGED = (
    at(257, large=10.0, small=12.0, library=10.9),
    at(560, large=20.0, small=21.0, library=22.0),
)


def test_the_bound_holds_at_smaller_sizes() -> None:
    """A tenth above the best there, or the winner's worst ratio; without a time nobody keeps it."""
    for winner, keeps in ((LARGE, True), (LIBRARY, True), (SMALL, False), (template(64), False)):
        assert is_within_bound(winner, tuned_along(*RANGED)) is keeps, winner
    for small_us, keeps in ((12.6, True), (12.7, False)):
        low = at(257, large=12.6, small=small_us, library=10.0)
        own = at(560, large=20.0, small=21.0, library=28.0)
        assert is_within_bound(SMALL, tuned_along(low, own)) is keeps, small_us
    assert is_within_bound(SMALL, tuned_along(RANGED[-1]))  # without a range


def test_a_fused_winner_gets_its_bare_ratios() -> None:
    """A winner timed with its region gets its ratios from the times of the GEMM alone."""
    bare = tuned_along(*RANGED)
    fused = replace(bare, row=replace(bare.row, winner=LIBRARY))
    assert bare.row.evidence.along == ((257, 1.0), (560, 1.0))
    assert with_bare_range_regret(bare, fused).row.evidence.along == ((257, 1.09), (560, 1.1))
