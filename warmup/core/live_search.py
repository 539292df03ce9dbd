"""`LiveSearch`: a decision measured in this process, whose candidates are made step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warmup.core.rows import Winner
from warmup.core.search import SearchCounts
from warmup.core.trial import TimedCall


@dataclass(frozen=True, slots=True)
class LiveSearch:
    """A decision measured in this process, whose candidates are made while others are timed.

    ``listed`` are the candidates among which default mode chooses, in its order, and ``calls`` are
    their calls. ``more`` takes the microseconds of all candidates so far, infinite for a rejected
    one, and returns the calls of further candidates; without any the search is over. ``written``
    calls a candidate once and returns copies of the tensors that it wrote. ``uncompiled`` has the
    candidates that did not compile, with the reason, and ``counts`` returns how many were tried:
    both grow while the search goes on. ``is_cut`` returns whether it ended early, since another
    kernel is so much faster that no further candidate can matter. ``banned`` is left out.
    """

    listed: tuple[Winner, ...]
    calls: Mapping[Winner, TimedCall]
    more: Callable[[Mapping[Winner, float]], Mapping[Winner, TimedCall]]
    written: Callable[[Winner], Sequence[Any]]
    uncompiled: Mapping[Winner, str]
    counts: Callable[[], SearchCounts]
    is_cut: Callable[[], bool] = lambda: False
    banned: Winner | None = None


def without(search: LiveSearch, banned: Winner | None) -> LiveSearch:
    """Return *search* without the candidate *banned*, unless that is the first one listed."""
    if banned is None or banned == search.listed[0]:
        return search

    def kept(calls: Mapping[Winner, TimedCall]) -> dict[Winner, TimedCall]:
        return {winner: call for winner, call in calls.items() if winner != banned}

    return replace(
        search,
        listed=tuple(winner for winner in search.listed if winner != banned),
        calls=kept(search.calls),
        more=lambda times_us: kept(search.more(times_us)),
        banned=banned,
    )
