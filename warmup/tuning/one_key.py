"""`OneKeyLookup`: a lookup for a module that was rebuilt from one key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from warmup.core.live_search import LiveSearch
from warmup.core.method import Search
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Family, Winner
from warmup.core.search import SearchCounts
from warmup.keys.question import Question
from warmup.keys.registry import kind_of
from warmup.table.lookup import Lookup


@dataclass
class OneKeyLookup(Lookup):
    """A lookup that answers and reports the key *wanted* alone.

    After a question for another key of the same kind, which goes to *others*, nothing is measured:
    the module was rebuilt wrongly. Serving did not miss the module's questions of other kinds: they
    get a neutral winner and are not reported. Where the ways of *wanted* are compiled to be timed,
    each with a GEMM of its own, the GEMMs are tuned too, so that the ways are timed as they run.
    With the search ``imported`` the candidates are the kernels *named* and the library's.
    """

    wanted: str = ""
    others: list[str] = field(default_factory=list)
    named: Sequence[Winner] = ()

    @property
    def tunes(self) -> bool:
        return super().tunes and not self.others

    def _wants(self, key: str) -> bool:
        has_ways = kind_of(self.wanted).neutral is not None
        return key == self.wanted or (has_ways and kind_of(key).is_searchable)

    def neighbours(self, key: str) -> tuple[Winner, ...]:
        return tuple(self.named) if self.search is Search.IMPORTED else super().neighbours(key)

    def find(self, key: str) -> Winner | MissReason:
        kind = kind_of(key)
        if kind is kind_of(self.wanted):
            if key != self.wanted and key not in self.rows:  # a region's rows are its ways
                self.others.append(key)
        elif kind.neutral is not None:
            return kind.neutral
        return super().find(key)

    def hit(self, key: str, winner: Winner) -> None:
        if self._wants(key) or (key in self.rows and kind_of(key) is kind_of(self.wanted)):
            super().hit(key, winner)

    def miss(self, key: str, reason: MissReason, fallback: str) -> None:
        if self._wants(key):
            super().miss(key, reason, fallback)

    def measure(self, question: Question) -> Winner | None:
        key = question.problem.key
        if not self._wants(key):
            return question.library
        if self.search is Search.IMPORTED:
            kept = tuple(
                one
                for one in question.candidates
                if one.winner.family is Family.EXTERN
                or one.winner == question.library
                or any(named.names(one.winner) for named in self.named)
            )
            counts = SearchCounts(search=Search.IMPORTED, listed=len(kept))
            question = replace(question, candidates=kept, searched=counts)
        return super().measure(question)

    def measure_calls(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Winner | None:
        if self._wants(key):
            return super().measure_calls(key, library, calls)
        return library  # of another kernel of the rebuilt module, which serving never asks for

    def measure_search(self, key: str, search: LiveSearch) -> Winner | None:
        return super().measure_search(key, search) if key == self.wanted else search.listed[0]
