"""`Predictions`: answers the questions of a build and of serving from a device model."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import ProblemError
from warmup.core.predicted_config import PredictedConfig, PredictedWinner
from warmup.core.rows import Winner
from warmup.keys.gemm import GEMM, NO_EPILOGUE
from warmup.keys.gemm_text import parse_problem
from warmup.keys.pad import AS_IS, PAD, PADDED
from warmup.keys.registry import kind_of
from warmup.prediction.device_model import DeviceModel, Predictor
from warmup.prediction.features import CONFIG_KWARGS, GemmSizes, config_of, sizes_of
from warmup.prediction.model_file import encode_device_model
from warmup.prediction.pad.features import pad_sizes_of
from warmup.prediction.pad.pad_model import PadAnswer

DEFAULT_TOP: Final = 8


@dataclass(frozen=True)
class Predictions:
    """What the model of *predictor* says; a search measures the *top* candidates.

    Implements `warmup.table.time_predictor.TimePredictor`.
    """

    predictor: Predictor
    top: int = DEFAULT_TOP

    @property
    def digest(self) -> str:
        """The SHA-256 of the device model."""
        return hashlib.sha256(encode_device_model(self.predictor.model).encode()).hexdigest()

    @classmethod
    def of(cls, model: DeviceModel, top: int = DEFAULT_TOP) -> Predictions:
        """Return the predictions of *model*."""
        return cls(Predictor(model), top)

    def promising(self, key: str, candidates: Sequence[Winner]) -> Collection[Winner] | None:
        """Return the *top* of the template *candidates* by predicted time; None where unsure.

        Unsure is a problem outside of what was measured, and one with a candidate of a template
        that was not measured. An epilogue makes no difference: it is timed with the best of them.
        """
        sizes = self._sizes(key)
        if sizes is None or self.predictor.unsure(sizes) is not None:
            return None
        configs = [config for winner in candidates if (config := config_of(winner, None))]
        if len(configs) < len(candidates):
            return None
        times = self.predictor.times_us(sizes, configs)
        order = {
            winner: time for winner, time in zip(candidates, times, strict=True) if time is not None
        }
        if len(order) < len(candidates):
            return None
        ranked = sorted(candidates, key=lambda winner: (order[winner], str(winner)))
        return tuple(ranked[: self.top])

    def predict(self, key: str) -> PredictedConfig | None:
        """Return the config whose bound says that it beats the library for *key*, or None.

        None too for a problem outside of what was measured, with an epilogue or with a range: times
        were measured without epilogues, at constant sizes.
        """
        if not key.endswith(f" | epilogue={NO_EPILOGUE}") or ".." in key:
            return None
        sizes = self._sizes(key)
        if sizes is None or self.predictor.unsure(sizes) is not None:
            return None
        choice = self.predictor.choose(sizes)
        if choice is None or not choice.beats_library:
            return None
        config = choice.config
        numbers = (
            *(config.block_m, config.block_n, config.block_k),
            *(config.group_m, config.stages, config.warps),
        )
        return PredictedConfig(
            uid=config.uid,
            kwargs=tuple(zip(CONFIG_KWARGS, numbers, strict=True)),
            source_hash=self.predictor.model.templates.get(config.uid),
            time_us=round(choice.time_us, 3),
            library_us=round(choice.library_us, 3),
            gain=round(choice.gain, 4),
            bound=round(choice.bound, 4),
        )

    def predict_winner(self, key: str) -> PredictedWinner | None:
        """Return whether to pad, for the pad key *key*; None where unsure, and for other keys."""
        pad = self.predictor.model.pad
        if pad is None or kind_of(key) is not PAD:
            return None
        sizes = pad_sizes_of(key)
        leaf = None if sizes is None else pad.leaf(sizes)
        if leaf is None or leaf.answer is PadAnswer.UNSURE:
            return None
        winner = PADDED if leaf.answer is PadAnswer.PADDED else AS_IS
        return PredictedWinner(winner=winner, gain=leaf.gain, bound=leaf.bound)

    def _sizes(self, key: str) -> GemmSizes | None:
        if kind_of(key) is not GEMM:
            return None
        try:
            return sizes_of(parse_problem(key))
        except ProblemError:
            return None
