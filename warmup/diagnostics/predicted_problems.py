"""`PredictedProblem`: a problem that a device model answered while serving."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from warmup.core.layers_form import LayersForm
from warmup.diagnostics.logs import PREDICTED, Ledger
from warmup.keys.order import natural_order


@dataclass(frozen=True, slots=True)
class PredictedProblem:
    """A problem for which a predicted config was compiled, with the times that were predicted.

    Times are in microseconds; ``bound`` is the lower bound of the library's time over the config's.
    ``layers`` are the forms of repeated layers in which it was asked.
    """

    key: str
    count: int
    predicted_us: float
    library_us: float
    bound: float
    layers: tuple[LayersForm, ...]

    @property
    def saved_us(self) -> float:
        """The expected gain: what the config saves in a call, times the number of calls."""
        return (self.library_us - self.predicted_us) * self.count


def predicted_problems(ledger: Ledger) -> tuple[PredictedProblem, ...]:
    """Return the predicted problems of *ledger*, those that may gain most by a build first."""
    counts: Counter[str] = Counter()
    for run in ledger.runs.values():
        counts.update(run.predicted)
    found = [
        PredictedProblem(
            key, count, *ledger.first_predictions[key], ledger.missed_by[key, PREDICTED]
        )
        for key, count in counts.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.saved_us, natural_order(each.key))))
