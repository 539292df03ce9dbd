"""`PredictedProblem`: a problem that a device model answered while serving."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from warmup.diagnostics.logs import Ledger
from warmup.keys.order import natural_order


@dataclass(frozen=True, slots=True)
class PredictedProblem:
    """A problem that a device model answered, with the times that were predicted.

    Times are in microseconds, None for a pad decision, of which no time is predicted; ``bound`` is
    the lower bound of the time of the library or of default mode over that of the answer.
    """

    key: str
    count: int
    predicted_us: float | None
    library_us: float | None
    bound: float

    @property
    def saved_us(self) -> float:
        """The expected gain: what the config saves in a call, times the number of calls.

        0 without times.
        """
        if self.predicted_us is None or self.library_us is None:
            return 0.0
        return (self.library_us - self.predicted_us) * self.count


def predicted_problems(ledger: Ledger) -> tuple[PredictedProblem, ...]:
    """Return the predicted problems of *ledger*, those that may gain most by a build first."""
    counts: Counter[str] = Counter()
    for run in ledger.runs.values():
        counts.update(run.predicted)
    found = [
        PredictedProblem(key, count, *ledger.first_predictions[key])
        for key, count in counts.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.saved_us, natural_order(each.key))))
