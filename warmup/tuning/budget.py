"""`SearchBudget`: how far a build searches for candidates, and for how long."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from warmup.core.errors import SettingsError
from warmup.core.method import Search
from warmup.core.rows import Evidence, Row
from warmup.keys.registry import kind_of
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.report import BucketResult

_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}
_TIME_LIMIT: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([smh]?)")
# Estimated candidates beyond those of the default: an exhaustive search tries 400 to 2300.
_ADDED: Final[Mapping[Search, int]] = {Search.WIDE: 40, Search.EXHAUSTIVE: 800}
_CANDIDATE_S: Final = 0.5  # estimated seconds to compile and measure one, without measured ones

RunAgain = Callable[[BucketResult, int, int], BucketResult]


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """How far to search; with ``seconds``, only until so much time has passed."""

    search: Search
    seconds: float | None = None

    @property
    def first_pass(self) -> Search:
        """How far each problem is searched before the budget is spent."""
        return self.search if self.seconds is None else Search.DEFAULT


def parse_budget(search: str, budget: str | float | None) -> SearchBudget:
    """Return the budget of ``--search``, such as ``wide``, and ``--budget``: ``20m``, or seconds.

    Raises:
        SettingsError: either has another form, or a budget is given for the default search.
    """
    words = [word for word in Search if word is not Search.IMPORTED]
    if search not in words:
        raise SettingsError(f"--search {search!r} is unknown", f"use one of {', '.join(words)}")
    if budget is None:
        return SearchBudget(Search(search))
    if search == Search.DEFAULT:
        raise SettingsError(
            f"--budget {budget} has nothing to be spent on", "add --search wide or exhaustive"
        )
    return SearchBudget(Search(search), parse_seconds(budget, "--budget"))


def parse_seconds(time_limit: str | float, option: str) -> float:
    """Return *time_limit*, such as ``20m`` or seconds, in seconds; it was given with *option*.

    Raises:
        SettingsError: it has another form.
    """
    match = _TIME_LIMIT.fullmatch(time_limit.strip()) if isinstance(time_limit, str) else None
    seconds = float(match[1]) * _SECONDS[match[2]] if match else time_limit
    if isinstance(seconds, str) or not 0 <= seconds < math.inf:
        raise SettingsError(f"{option} {time_limit!r} is no time", "write 90s, 20m or 2h")
    return seconds


def spend_budget(
    progress: Progress,
    run_again: RunAgain,
    results: Sequence[BucketResult],
    budget: SearchBudget,
    started: float,
) -> tuple[BucketResult, ...]:
    """Search further until the budget is used up; return *results* with the runs added.

    Problems that may gain most come first: those that take longest and are furthest from the
    device's peaks, as many as are likely to fit into the time left. The budget counts from
    *started*, by `time.monotonic`; a bucket that was begun is finished. ``run_again(result, number,
    total)`` runs the bucket of a result once more.
    """
    assert budget.seconds is not None
    deadline = started + budget.seconds
    tuned = [problem for problem in progress.tuned if kind_of(problem.key).is_searchable]
    tried = sum(problem.row.evidence.tried for problem in tuned)
    candidate_s = (time.monotonic() - started) / tried if tried else _CANDIDATE_S
    limit = (deadline - time.monotonic()) / (candidate_s * _ADDED[budget.search])
    keys = choose_keys(results, progress.rows, budget.search, limit)
    updated = list(results)
    order = sorted(range(len(updated)), key=lambda index: _first_position(keys, updated[index]))
    for number, index in enumerate(order):
        before = updated[index]
        chosen = frozenset(keys) & frozenset(before.keys)
        if chosen and time.monotonic() < deadline:
            progress.revisit = Revisit(search=budget.search, chosen=chosen, deadline=deadline)
            progress.reopen(chosen)
            after = run_again(before, number, len(order))
            updated[index] = replace(
                after, tuned=before.tuned + after.tuned, seconds=before.seconds + after.seconds
            )
    return tuple(updated)


def choose_keys(
    results: Sequence[BucketResult], rows: Mapping[str, Row], search: Search, limit: float
) -> tuple[str, ...]:
    """Return at most *limit* keys that were searched less far than *search*, largest gain first."""
    keys = dict.fromkeys(
        key for result in results for key in result.keys if kind_of(key).is_searchable
    )
    narrower = [key for key in keys if rows[key].evidence.search.is_narrower_than(search)]
    ranked = sorted(narrower, key=lambda key: (-_gain_us(rows[key].evidence), key))
    return tuple(ranked[: max(0, int(limit))])


def _gain_us(evidence: Evidence) -> float:
    """Return the most that a better kernel could save: the time above that at the peaks, in us."""
    bare_us = evidence.bare_us or evidence.time_us
    return bare_us * (1 - min(evidence.peak_share or 0.0, 1.0))


def _first_position(keys: Sequence[str], result: BucketResult) -> int:
    """Return the position in *keys* of the first key of *result*."""
    own = set(result.keys)
    return next((i for i, key in enumerate(keys) if key in own), len(keys))
