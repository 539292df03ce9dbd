"""`SearchResults`: what came of the launch searches of a build, for kernels of equal code.

Each form of a reduction is searched before inductor generates the kernel of the form that won, and
a graph may have the same kernel under several names. A kernel is timed once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from warmup.core.events import logger
from warmup.core.live_search import LiveSearch
from warmup.core.rows import Winner
from warmup.core.search import SearchCounts
from warmup.core.trial import Outcome
from warmup.keys.registry import kind_of


@dataclass(frozen=True, slots=True)
class FoundConfigs:
    """The outcomes of a search, its control, and how many candidates were tried."""

    outcomes: tuple[Outcome, ...]
    library: Winner
    counts: SearchCounts
    is_disturbed: bool


@dataclass(slots=True)
class SearchResults:
    """The last result for each kernel, with the candidates that default mode lists for it."""

    _results: dict[str, tuple[tuple[Winner, ...], FoundConfigs]] = field(default_factory=dict)
    _with_row: set[str] = field(default_factory=set)

    def keep(
        self, key: str, search: LiveSearch, result: FoundConfigs, *, has_row: bool = True
    ) -> None:
        """Keep the *result* of *search* for kernels like that of *key*.

        With *has_row* the row of *key* is made of it: for this key `known` returns None from now
        on, so that a row that is asked for again is measured again. What came of a search that was
        cut is not kept.
        """
        if not search.is_cut():
            self._results[kind_of(key).measured_once(key)] = search.listed, result
        if has_row:
            self._with_row.add(key)

    def known(self, key: str, search: LiveSearch) -> FoundConfigs | None:
        """Return what came of the search of an equal kernel; None where *search* is to be timed.

        That is so where default mode lists other candidates for the two, and where times were
        disturbed. A candidate that *search* leaves out is not in the result.
        """
        listed, result = self._results.get(kind_of(key).measured_once(key), ((), None))
        if result is None or result.is_disturbed or key in self._with_row:
            return None
        if listed != search.listed or result.library == search.banned:
            return None
        logger.debug("searched before, under another name: %s", key)
        kept = tuple(one for one in result.outcomes if one.winner != search.banned)
        return replace(result, outcomes=kept)
