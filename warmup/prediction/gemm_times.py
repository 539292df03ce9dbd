"""`GemmTimes`: a GEMM's time with its own winner, and with the winner of the GEMM at another size.

A time is measured where a table has it: in the row of the size, whose ranking may name the other
winner. Predicted times are a device model's. `SampledKeys` has the keys at sizes between two sizes
that were compiled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import ProblemError
from warmup.core.ranking import ranked
from warmup.core.rows import Evidence, Row, Winner
from warmup.keys.gemm import GEMM
from warmup.keys.gemm_text import parse_problem
from warmup.keys.registry import kind_of
from warmup.prediction.device_model import Predictor
from warmup.prediction.features import (
    LIBRARY_CONFIG,
    CandidateConfig,
    GemmSizes,
    config_in,
    sizes_of,
)

_KEY_NUMBERS: Final = re.compile(r"(\d+)")
_LIBRARY_CALLS: Final = frozenset({"aten::mm", "aten::bmm"})  # default mode's call of their op

GemmTimePair = tuple[float, float]  # of a size's own winner, and of the first size's winner


@dataclass(frozen=True, slots=True)
class SampledKeys:
    """The GEMM keys of the model at two sizes, in the order of the compile: `at` has the others."""

    sizes: tuple[int, int]
    keys: tuple[tuple[str, ...], tuple[str, ...]]

    def at(self, size: int) -> tuple[str | None, ...]:
        """Return the keys at *size*: each number that differs grows evenly with the size.

        None for a key that does not, and no keys where the two sizes have different GEMMs.
        """
        if len(self.keys[0]) != len(self.keys[1]):
            return ()
        pairs = zip(*self.keys, strict=True)
        return tuple(self._key(first, second, size) for first, second in pairs)

    def _key(self, first: str, second: str, size: int) -> str | None:
        low, high = self.sizes
        parts = []
        one, other = _KEY_NUMBERS.split(first), _KEY_NUMBERS.split(second)
        if len(one) != len(other):
            return None
        for here, there in zip(one, other, strict=True):
            if here == there:
                parts.append(here)
                continue
            if not (here.isdecimal() and there.isdecimal()):
                return None
            grown, rest = divmod((int(there) - int(here)) * (size - low), high - low)
            if rest or int(here) + grown < 1:
                return None
            parts.append(str(int(here) + grown))
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class GemmTimes:
    """What is known of times: the rows of a table, and a device model."""

    rows: Mapping[str, Row]
    predictor: Predictor | None

    def measured(self, first: str, key: str) -> GemmTimePair | None:
        """Return the times in the row of *key*: of its winner, and of the winner of *first*."""
        row, tuned = self.rows.get(key), self.rows.get(first)
        if row is None or tuned is None or row.evidence.is_unstable:
            return None
        by_first = _time_of(tuned.winner, row)
        return None if by_first is None else (row.evidence.time_us, by_first)

    def predicted(self, first: str, key: str) -> GemmTimePair | None:
        """Return the predicted times at *key*: the least, and that of the config of *first*."""
        sizes, tuned = self._sizes(key), self._sizes(first)
        if self.predictor is None or sizes is None or tuned is None:
            return None
        row = self.rows.get(first)
        config = self._best(tuned) if row is None else _config_of(first, row.winner)
        best = self._best(sizes)
        if config is None or best is None:
            return None
        own, by_first = self.predictor.times_us(sizes, (best, config))
        return None if own is None or by_first is None else (own, by_first)

    def _sizes(self, key: str) -> GemmSizes | None:
        try:
            sizes = sizes_of(parse_problem(key))
        except ProblemError:
            return None
        if sizes is None or self.predictor is None or self.predictor.unsure(sizes) is not None:
            return None
        return sizes

    def _best(self, sizes: GemmSizes) -> CandidateConfig | None:
        """Return the config that is preferred by its predicted time, or the library's kernel."""
        choice = self.predictor.choose(sizes) if self.predictor else None
        if choice is None:
            return None
        return choice.config if choice.is_preferred else LIBRARY_CONFIG


def gemms_among(keys: Sequence[str]) -> tuple[str, ...]:
    """Return those of *keys* that are of GEMMs."""
    return tuple(key for key in keys if kind_of(key) is GEMM)


def _config_of(key: str, winner: Winner) -> CandidateConfig | None:
    """Return the config of *winner* in the row of *key*; None for another library kernel."""
    return config_in(key.partition(" ")[0], winner)


def _time_of(winner: Winner, row: Row) -> float | None:
    """Return the time of *winner* that *row* has, timed as the row was; None without it.

    A name that two candidates of the ranking share tells neither.
    """
    evidence: Evidence = row.evidence
    if winner == row.winner:
        return evidence.time_us
    if evidence.runner_up == str(winner):
        return evidence.runner_up_us
    if winner.uid in _LIBRARY_CALLS and evidence.library_us is not None:
        return evidence.library_us
    times = [time_us for time_us, name in ranked(evidence) if name == winner.short]
    return times[0] if len(times) == 1 else None
