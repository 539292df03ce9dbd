"""`choose_for_range`: the winner for a GEMM with a range of sizes, measured at several of them."""

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


def choose_for_range(
    question: Question,
    outcomes: Sequence[Outcome],
    winner: Winner,
    method: Method,
    run: RunQuestion,
) -> tuple[Winner, tuple[SizeOutcomes, ...]]:
    """Return the winner for the range of *question*, and the outcomes at each measured size.

    *winner* and *outcomes* are those at the question's own size, which is the last of the sizes;
    the best candidates are run at the smaller ones. *run* measures a question. A winner other than
    *winner* was run once more at the question's own size, alone, and its result was right.
    """
    assert question.size is not None
    assert question.library is not None
    rivals = rivals_of(outcomes, winner, question.library)
    smaller = [_run_at(question, size, rivals, run) for size in question.smaller_sizes]
    while True:
        sizes = (*smaller, SizeOutcomes(question.size, outcomes))
        chosen = select_for_range(winner, sizes, question.library, method)
        if chosen == winner:
            return winner, sizes
        try:
            confirmed = _run_alone(question, chosen, run)
        except TrialNotRunError as error:
            logger.warning(
                "%s is kept, not %s: %s: %s", winner, chosen, question.problem.key, error
            )
            return winner, sizes
        outcomes = [confirmed if outcome.winner == chosen else outcome for outcome in outcomes]
        if confirmed.time_us is not None:
            logger.debug("%s, not %s, along the range: %s", chosen, winner, question.problem.key)
            return chosen, (*smaller, SizeOutcomes(question.size, outcomes))
        smaller = [_without(chosen, size) for size in smaller]  # rejected, however fast


def _run_alone(question: Question, winner: Winner, run: RunQuestion) -> Outcome:
    """Return the outcome of *winner* as the only candidate, which is timed and checked fully."""
    candidates = tuple(one for one in question.candidates if one.winner == winner)
    (outcome,) = run(replace(question, candidates=candidates))
    return outcome


def _without(winner: Winner, size: SizeOutcomes) -> SizeOutcomes:
    return replace(size, outcomes=[one for one in size.outcomes if one.winner != winner])


def _run_at(
    question: Question, smaller: SmallerSize, rivals: Sequence[Winner], run: RunQuestion
) -> SizeOutcomes:
    """Return the outcomes of *rivals* at another size; with a warning none when they cannot run."""
    asked = replace(smaller.question_for(rivals), library=question.library)
    try:
        return SizeOutcomes(smaller.size, run(asked))
    except TrialNotRunError as error:
        logger.warning("not timed at %d: %s: %s", smaller.size, question.problem.key, error)
        return SizeOutcomes(smaller.size, ())
