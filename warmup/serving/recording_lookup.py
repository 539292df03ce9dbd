"""`RecordingLookup`: the lookup of a process whose questions become the rows of a table.

Several processes of one program may ask at once, and even the same questions. They measure one
after the other, and a question that another process has measured meanwhile takes that row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from warmup.core.file_lock import Turn
from warmup.core.live_search import LiveSearch
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Winner
from warmup.keys.question import Question, RegionQuestion
from warmup.table.lookup import Lookup
from warmup.tuning.progress import Progress


@dataclass(kw_only=True)
class RecordingLookup(Lookup):
    """A lookup that measures what has no row, and takes the rows that other processes write.

    ``progress`` is the table on disk, where the rows of this process go too. A question that could
    not be measured is reported as a miss, so that it can be tuned when the program has ended.
    ``later`` keeps a question whose region can be measured only then.

    A key of whose row the program does not fuse what the region alone fused is put into ``apart``,
    the keys that the tuner measures without fusing, and is measured again when it is next asked.
    """

    progress: Progress
    turn: Turn
    later: Callable[[RegionQuestion], None]
    apart: set[str] = field(default_factory=set)
    _stamp: tuple[int, int] | None = None

    def find(self, key: str) -> Winner | MissReason:
        answer = super().find(key)
        if isinstance(answer, Winner) or not self._refresh():
            return answer
        return super().find(key)

    def scheduled(self, key: str, *, fused: bool, found: bool) -> None:
        super().scheduled(key, fused=fused, found=found)
        if fused and not found and key not in self.apart:
            self.apart.add(key)
            self.progress.measure_again([key])
            with self._lock:
                self._tuned_rows.pop(key, None)

    def measure(self, question: Question) -> Winner | None:
        key, library = question.problem.key, question.library
        offered = {one.winner for one in question.candidates}
        with self.turn.taken():
            known = self._row_of_another(key, lambda winner: winner.choice in offered)
            winner = known or super().measure(question)
        return self._measured(key, winner, library)

    def measure_calls(
        self, key: str, library: Winner, calls: Mapping[Winner, Callable[[int], object]]
    ) -> Winner | None:
        with self.turn.taken():
            known = self._row_of_another(key, calls.__contains__)
            winner = known or super().measure_calls(key, library, calls)
        return self._measured(key, winner, library)

    def measure_search(self, key: str, search: LiveSearch) -> Winner | None:
        with self.turn.taken():  # the hooks can make no kernel of a config that was not listed
            known = self._row_of_another(key, search.listed.__contains__)
            winner = known or super().measure_search(key, search)
        return self._measured(key, winner, search.listed[0])

    def try_search(self, key: str, search: LiveSearch) -> Winner | None:
        with self.turn.taken():
            return super().try_search(key, search)

    def measure_region(self, question: RegionQuestion) -> Winner | None:
        with self.turn.taken():
            known = self._row_of_another(question.key, question.ways.__contains__)
            winner = known or super().measure_region(question)
            if known is None and question.region is not None:
                self.later(question)
        return self._measured(question.key, winner, question.library)

    def _measured(self, key: str, winner: Winner | None, library: Winner | None) -> Winner | None:
        if winner is None:
            self.miss(key, MissReason.NOT_IN_TABLE, str(library))
        return winner

    def _row_of_another(self, key: str, is_offered: Callable[[Winner], bool]) -> Winner | None:
        """Return the winner that another process has measured for *key* since it was asked."""
        if not self._refresh():
            return None
        found = super().find(key)
        if not isinstance(found, Winner) or not is_offered(found):
            return None
        self.hit(key, found)
        return found

    def _refresh(self) -> bool:
        """Take the rows of the table on disk, if it has changed; return whether it had."""
        stamp = self.progress.stamp()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self.progress.read_again()
        self.rows = self.progress.rows
        return True
