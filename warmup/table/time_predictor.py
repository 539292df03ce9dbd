"""`TimePredictor`: what predicts times and winners that nobody measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from warmup.core.predicted_config import PickedConfig, PredictedWinner
from warmup.core.rows import Winner


class TimePredictor(Protocol):
    """Predicts for keys of some kinds; `warmup.prediction.predictions` implements it."""

    def promising(self, key: str, candidates: Sequence[Winner]) -> Collection[Winner] | None:
        """Return the most promising template candidates for *key*; None where unsure."""

    def predict(self, key: str) -> PickedConfig | None:
        """Return the config to serve for *key* without a measurement; None without such."""

    def predict_winner(self, key: str) -> PredictedWinner | None:
        """Return the winner to serve for *key* without a measurement; None where unsure."""
