"""`RowClasses`: which digest the rows of a weight have; `Invariance`: what a table promises.

The digests are those of `warmup.measuring.row_bits`. Winners of one digest add up a row in one
order, so that the row has the same bits in every bucket.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from warmup.core.events import in_brackets, logger
from warmup.core.rows import Family, Row, Winner
from warmup.core.text import counted
from warmup.core.trial import Outcome
from warmup.keys.registry import kind_of
from warmup.table.schema import Table

NO_CLASS: Final = "no candidate adds up a row as in the other buckets"


@dataclass
class RowClasses:
    """The digest of each weight, and while it `surveys` the times by digest in every bucket.

    A weight is what is left of a key without its rows, see `Kind.weight`.
    """

    chosen: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)  # keys without a row, with the reason
    surveys: bool = False
    _times_us: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)

    def fix(self, rows: Mapping[str, Row]) -> None:
        """Choose the digests that *rows* of a table have already: new rows must have them too."""
        self.chosen.update({weight: bits for weight, bits in _digests_of(rows) if bits is not None})

    def note(self, key: str, outcomes: Sequence[Outcome]) -> None:
        """Note the least time of each digest for *key*."""
        times = self._times_us.setdefault(_weight(key), {})
        least = times.setdefault(key, {})
        for time_us, bits, _ in _held(key, outcomes):
            least[bits] = min(least.get(bits, time_us), time_us)

    def choose(self) -> None:
        """Choose for each weight the digest with the least total time over all of its problems.

        A digest that one of them lacks is not chosen; a weight without any digest stays open.
        """
        for weight, by_problem in self._times_us.items():
            every = list(by_problem.values())
            shared = set[str].intersection(*map(set, every))
            if weight in self.chosen or not shared:
                continue
            total_us = {bits: sum(times[bits] for times in every) for bits in shared}
            self.chosen[weight] = min(total_us, key=lambda bits: (total_us[bits], bits))
            logger.debug("%d classes, chosen for %s: %s", len(total_us), weight, total_us)
        self._times_us.clear()

    def of(self, key: str, outcomes: Sequence[Outcome]) -> str | None:
        """Return the digest of the weight of *key*, that of the fastest where it has none yet."""
        weight, held = _weight(key), _held(key, outcomes)
        if weight not in self.chosen and held:
            _, self.chosen[weight], _ = min(held, key=itemgetter(0))
        return self.chosen.get(weight)

    def members(self, key: str, outcomes: Sequence[Outcome]) -> frozenset[Winner]:
        """Return the candidates among *outcomes* with the digest of the weight of *key*.

        Where none has the digest, *key* is ``lacking``. A survey notes the outcomes, and has no
        members.
        """
        if self.surveys:
            self.note(key, outcomes)
            return frozenset()
        wanted = self.of(key, outcomes)
        members = frozenset(winner for _, bits, winner in _held(key, outcomes) if bits == wanted)
        if not members:
            self.lacking[key] = NO_CLASS
        return members


def _held(key: str, outcomes: Sequence[Outcome]) -> list[tuple[float, str, Winner]]:
    return [
        (one.time_us, one.bits, one.winner)
        for one in outcomes
        if one.time_us and one.bits is not None and can_hold(key, one.winner)
    ]


def _weight(key: str) -> str:
    weight = kind_of(key).weight
    return key if weight is None else weight(key)


def _digests_of(rows: Mapping[str, Row]) -> Iterator[tuple[str, str | None]]:
    for key, row in rows.items():
        if kind_of(key).weight is not None:
            yield _weight(key), row.evidence.bits


def can_hold(key: str, winner: Winner) -> bool:
    """Whether the digest of *winner* at one size holds for all sizes of *key*."""
    # A library chooses its kernel by the number of rows, which a range does not fix.
    kind = kind_of(key)
    parts = kind.ingredients(key)
    is_range = any(".." in parts.get(name, "") for name in kind.ranges)
    return not is_range or winner.family is not Family.EXTERN


@dataclass(frozen=True, slots=True)
class Invariance:
    """What an invariant table promises.

    ``weights`` counts by op the weights whose rows have one digest, ``broken`` has those with
    several or none, and ``open`` counts rows of other kinds, by kind, which have no digest.
    """

    weights: Mapping[str, int]
    broken: tuple[str, ...]
    open: Mapping[str, int]

    def __str__(self) -> str:
        weights = counted(sum(self.weights.values()), "weight")
        promised = f"{weights} with one digest each{in_brackets(self.weights)}"
        if self.broken:
            promised += f", {len(self.broken)} with several or none, such as {self.broken[0]}"
        return f"{promised}; not promised: decisions without a row{in_brackets(self.open)}"


def invariance_of(table: Table) -> Invariance | None:
    """Return what *table* promises; None where it was not built with ``--invariant``."""
    if not table.policy.invariant:
        return None
    digests: dict[str, set[str | None]] = defaultdict(set)
    for weight, bits in _digests_of(table.rows):
        digests[weight].add(bits)
    broken = sorted(weight for weight, bits in digests.items() if len(bits) > 1 or None in bits)
    held = Counter(weight.partition(" ")[0] for weight in digests.keys() - {*broken})
    kinds = (kind_of(key) for key in table.rows)
    others = Counter(one.name for one in kinds if one.weight is None and not one.is_fixed_by_row)
    return Invariance(held, tuple(broken), others)
