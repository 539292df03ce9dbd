"""`SearchBudget`: how far a build searches and for how long, and spending the rest of it."""

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
_BUDGET: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([smh]?)")
# Candidates beyond the default's, for a guess: an exhaustive search tries 400 to 2300.
_ADDED: Final[Mapping[Search, int]] = {Search.WIDE: 40, Search.EXHAUSTIVE: 800}
_CANDIDATE_S: Final = 0.5  # to compile and measure a candidate, where nothing was tuned now

RunAgain = Callable[[BucketResult, int, int], BucketResult]


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """How far to search; with ``seconds`` only as long as there is time for it."""

    search: Search
    seconds: float | None = None

    @property
    def first(self) -> Search:
        """How far every problem is searched."""
        return self.search if self.seconds is None else Search.DEFAULT


def parse_budget(search: str, budget: str | float | None) -> SearchBudget:
    """Return what ``--search`` and ``--budget`` name: ``wide`` and ``20m``, or seconds.

    Raises:
        SettingsError: either has another form, or there is a budget for no search.
    """
    if search not in set(Search):
        raise SettingsError(f"--search {search!r} is unknown", f"use one of {', '.join(Search)}")
    if budget is None:
        return SearchBudget(Search(search))
    if search == Search.DEFAULT:
        raise SettingsError(
            f"--budget {budget} has nothing to be spent on", "add --search wide or exhaustive"
        )
    return SearchBudget(Search(search), _seconds(budget))


def _seconds(budget: str | float) -> float:
    match = _BUDGET.fullmatch(budget.strip()) if isinstance(budget, str) else None
    seconds = float(match[1]) * _SECONDS[match[2]] if match else budget
    if isinstance(seconds, str) or not 0 <= seconds < math.inf:
        raise SettingsError(f"--budget {budget!r} is no time", "write 90s, 20m or 2h")
    return seconds


def widen(
    progress: Progress,
    run_again: RunAgain,
    results: Sequence[BucketResult],
    budget: SearchBudget,
    started: float,
) -> tuple[BucketResult, ...]:
    """Search further, as long as there is budget; return *results* with what that changed.

    The problems that may gain most come first, those that take longest and are furthest from the
    device's peaks, as many as are likely to fit into what is left since *started*, by the clock of
    `time.monotonic`. When the budget is used up none is begun. *run_again* runs the bucket of a
    result once more, as number so and so of so many.
    """
    assert budget.seconds is not None
    until = started + budget.seconds
    tuned = [each for each in progress.tuned if kind_of(each.key).is_searchable]
    tried = sum(each.row.evidence.tried for each in tuned)
    each_s = (time.monotonic() - started) / tried if tried else _CANDIDATE_S
    most = (until - time.monotonic()) / (each_s * _ADDED[budget.search])
    keys = choose(results, progress.rows, budget.search, most)
    found = list(results)
    order = sorted(range(len(found)), key=lambda place: _first(keys, found[place]))
    for number, place in enumerate(order):
        before = found[place]
        chosen = frozenset(keys) & frozenset(before.keys)
        if chosen and time.monotonic() < until:
            progress.revisit = Revisit(search=budget.search, chosen=chosen, until=until)
            progress.reopen(chosen)
            after = run_again(before, number, len(order))
            found[place] = replace(
                after, tuned=before.tuned + after.tuned, seconds=before.seconds + after.seconds
            )
    return tuple(found)


def choose(
    results: Sequence[BucketResult], rows: Mapping[str, Row], search: Search, most: float
) -> tuple[str, ...]:
    """Return the keys that were searched less far and may gain most, *most* at most, best first."""
    keys = dict.fromkeys(
        key for result in results for key in result.keys if kind_of(key).is_searchable
    )
    open_ = [key for key in keys if rows[key].evidence.search.is_narrower_than(search)]
    ranked = sorted(open_, key=lambda key: (-_gain_us(rows[key].evidence), key))
    return tuple(ranked[: max(0, int(most))])


def _gain_us(evidence: Evidence) -> float:
    """Return what a better kernel could save at most: the time above that at the peaks."""
    bare_us = evidence.bare_us or evidence.time_us
    return bare_us * (1 - min(evidence.peak_share or 0.0, 1.0))


def _first(keys: Sequence[str], result: BucketResult) -> int:
    asked = set(result.keys)
    return next((i for i, key in enumerate(keys) if key in asked), len(keys))
