"""A product whose size is a range, measured at smaller sizes of it: who wins for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from warmup.core.events import logger
from warmup.core.method import Method
from warmup.core.rows import Winner
from warmup.core.trial import Outcome
from warmup.keys.question import Question, SmallerSize
from warmup.measuring.range_regret import SizeOutcomes, rivals_of, select_for_range
from warmup.measuring.trial_process import TrialNotRunError

RunQuestion = Callable[[Question], Sequence[Outcome]]


def look_elsewhere(
    question: Question,
    outcomes: Sequence[Outcome],
    winner: Winner,
    method: Method,
    run: RunQuestion,
) -> tuple[Winner, tuple[SizeOutcomes, ...]]:
    """Return the winner for the range of *question*, and what came of the rivals at its sizes.

    *winner* and *outcomes* are those at its own size, the last of the places. *run* measures a
    question. Another winner has been timed to the end there, alone, and confirmed.
    """
    assert question.size is not None
    assert question.library is not None
    rivals = rivals_of(outcomes, winner, question.library)
    places = [_look(question, one, rivals, run) for one in question.smaller_sizes]
    while True:
        every = (*places, SizeOutcomes(question.size, outcomes))
        chosen = select_for_range(winner, every, question.library, method)
        if chosen == winner:
            return winner, every
        try:
            outcome = _alone(question, chosen, run)
        except TrialNotRunError as error:
            logger.warning("%s is kept, not %s: %s: %s", winner, chosen, question.key, error)
            return winner, every
        outcomes = [outcome if one.winner == chosen else one for one in outcomes]
        if outcome.time_us is not None:
            logger.debug("%s, not %s, along the range: %s", chosen, winner, question.key)
            return chosen, (*places, SizeOutcomes(question.size, outcomes))
        places = [_without(chosen, place) for place in places]  # wrong, however fast


def _alone(question: Question, winner: Winner, run: RunQuestion) -> Outcome:
    """Return what comes of *winner* when nothing else is measured, so that it is confirmed."""
    candidates = tuple(one for one in question.candidates if one.winner == winner)
    (outcome,) = run(replace(question, candidates=candidates))
    return outcome


def _without(winner: Winner, place: SizeOutcomes) -> SizeOutcomes:
    return replace(place, outcomes=[one for one in place.outcomes if one.winner != winner])


def _look(
    question: Question, smaller: SmallerSize, rivals: Sequence[Winner], run: RunQuestion
) -> SizeOutcomes:
    asked = replace(smaller.question_for(rivals), library=question.library)
    try:
        return SizeOutcomes(smaller.size, run(asked))
    except TrialNotRunError as error:
        logger.warning("not timed at %d: %s: %s", smaller.size, question.key, error)
        return SizeOutcomes(smaller.size, ())
