"""`choose_for_range`: which candidates run at smaller sizes of a range, and who wins."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from sample_tables import make_key

pytest.importorskip("torch")

from warmup.core.method import Method
from warmup.core.rows import Family, Rejection, Winner
from warmup.core.trial import Candidate, Outcome, Samples
from warmup.keys.gemm import GemmProblem
from warmup.keys.question import GemmQuestion, SmallerSize
from warmup.measuring.selection import SizeOutcomes
from warmup.measuring.trial_process import TrialNotRunError
from warmup.tuning.tuner import choose_for_range

LIBRARY = Winner(Family.EXTERN, "aten::mm")
LARGE = Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 128),), "0123")
SMALL = Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 32),), "0123")
OWN = {LIBRARY: 22.0, LARGE: 20.0, SMALL: 20.9}
Times = Mapping[Winner, float | Rejection]
Looked = tuple[Winner, tuple[SizeOutcomes, ...], list[tuple[int, list[Winner]]]]


def outcomes_of(times: Times) -> list[Outcome]:
    return [
        Outcome(winner=one, rejection=found)
        if isinstance(found, Rejection)
        else Outcome(winner=one, samples=Samples((found,)))
        for one, found in times.items()
    ]


def look(
    low: Times | None, middle: Times | None, *, alone: float | Rejection | None = 20.9
) -> Looked:
    """``look(low, middle, alone=...)``: the winner, the outcomes by size, and the runs by size.

    Times are stated for the sizes 257 and 408; *alone* is that of a new winner at 560. None is a
    size whose trial cannot be run.
    """
    base = GemmQuestion(
        GemmProblem.of_key(make_key("257..560")),
        "cpu",
        tuple(map(Candidate, OWN)),
        library=LIBRARY,
        size=560,
    )
    asked: list[tuple[int, list[Winner]]] = []
    stated = {257: low, 408: middle}

    def ask(size: int, winners: Sequence[Winner]) -> GemmQuestion:
        return replace(base, candidates=tuple(map(Candidate, winners)), size=size)

    def run(question: GemmQuestion) -> list[Outcome]:
        assert question.size is not None
        winners = [one.winner for one in question.candidates]
        asked.append((question.size, winners))
        times: Times | None = stated.get(question.size)
        if question.size == base.size and alone is not None:
            times = dict.fromkeys(winners, alone)
        if times is None:
            raise TrialNotRunError("for want of memory")
        return outcomes_of({one: times[one] for one in winners if one in times})

    smaller_sizes = tuple(
        SmallerSize(size, lambda winners, size=size: ask(size, winners)) for size in stated
    )
    question = replace(base, smaller_sizes=smaller_sizes)
    winner, places = choose_for_range(question, outcomes_of(OWN), LARGE, Method(), run)
    return winner, places, asked


GOOD = {LIBRARY: 10.0, LARGE: 10.0, SMALL: 10.0}
BAD = {LIBRARY: 15.0, LARGE: 20.0, SMALL: 10.0}


def test_a_good_winner_costs_a_trial_for_each_size() -> None:
    winner, places, asked = look(GOOD, GOOD)
    assert winner == LARGE
    assert [place.size for place in places] == [257, 408, 560]
    assert [(size, set(winners)) for size, winners in asked] == [(257, {*OWN}), (408, {*OWN})]


def test_another_winner_is_confirmed_at_the_largest_size() -> None:
    """The new winner is run there once more, alone, and has the time of that trial."""
    winner, places, asked = look(BAD, GOOD, alone=20.5)
    assert winner == SMALL
    assert asked[2:] == [(560, [SMALL])]
    assert {one.winner: one.time_us for one in places[-1].outcomes} == {**OWN, SMALL: 20.5}


def test_a_rejected_winner_gives_way_to_the_next() -> None:
    """The others are compared without a candidate that is not confirmed."""
    winner, places, asked = look(BAD, GOOD, alone=Rejection.WRONG)
    assert [winners for _, winners in asked[2:]] == [[SMALL], [LIBRARY]]
    assert winner == LARGE
    assert [one.winner for one in places[-1].outcomes if one.rejection] == [LIBRARY, SMALL]
    assert [one.winner for one in places[0].outcomes] == [LARGE]


def test_a_candidate_whose_confirmation_cannot_run_does_not_win(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The winner of the largest size stays, and the log has the reason."""
    with caplog.at_level(logging.WARNING, logger="warmup"):
        winner, _, _ = look(BAD, GOOD, alone=None)
    assert winner == LARGE
    assert "for want of memory" in caplog.text


def test_a_size_that_cannot_be_run_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="warmup"):
        winner, places, _ = look(None, GOOD)
    assert winner == LARGE
    assert places[0] == SizeOutcomes(257, ())
    assert "not timed at 257" in caplog.text
