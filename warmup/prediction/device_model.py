"""`DeviceModel`: what was learned from the timings of one device; `Predictor` answers from it.

Nothing here needs torch: a prediction is arithmetic on a few hundred numbers, in a fixed order.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from warmup.prediction.features import LIBRARY_UID, CandidateConfig, GemmSizes, kin_of
from warmup.prediction.formula import Constants, time_us
from warmup.prediction.pad.pad_model import PadModel
from warmup.prediction.timing_lines import MeasuredOn
from warmup.prediction.tree import Leaf, LeafEvidence, Tree, features_of, leaf_of

MIN_PROBLEMS: Final = 100
MIN_MODELS: Final = 3
RESIDUAL_UNIT: Final = 0.01  # of a logarithm of a time, in the file
NEAREST: Final = 6
MAX_DISTANCE: Final = 2.5  # of the nearest measured problem, in doublings of sizes
_OTHER_CATEGORY: Final = 1.0  # the distance that another category adds
_WIDTH: Final = 1.0  # doublings over which a residual loses its weight
_SHRINKAGE: Final = 0.3  # the weight of "no residual"
# A template is preferred to the library from here on. The median error of the library's time is 5 %
# on held-out models of an H100, and a wrong template costs more than the library where it is wrong.
PREFERRED_GAIN: Final = 1.05
# Of the nearest problems, those at which a config must have been measured to be chosen: a search
# offers other configs for a few rows than for many.
_LEAST_MEASURED: Final = NEAREST // 2

Sizes = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class MeasuredProblem:
    """A problem that was measured: its sizes, its category's number, and its residuals.

    ``residuals`` are logarithms of measured over calculated time, in hundredths: of the library, of
    each config of the covering set, and the mean of all other candidates; None where not measured.
    """

    sizes: tuple[int, int, int, int]
    category: int
    residuals: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """What a model file holds.

    ``constants`` and ``offsets`` are by uid or config, and by `GemmSizes.rate`. ``offsets`` are
    logarithms that a config adds to the formula. ``covering`` are the configs of which some config
    is near the best at each measured problem; the leaves of ``tree`` choose among them.
    ``problems`` counts the problems that it was fitted to, ``models`` names the models that they
    are of. ``pad`` says whether to pad unaligned GEMMs, None where no samples were fitted.
    """

    on: MeasuredOn
    method: str
    problems: int
    models: tuple[str, ...]
    templates: Mapping[str, str]
    categories: tuple[str, ...]
    constants: Mapping[tuple[str, str], Constants]
    offsets: Mapping[tuple[CandidateConfig, str], float]
    covering: tuple[CandidateConfig, ...]
    measured: tuple[MeasuredProblem, ...]
    tree: Tree
    chooser: str = "formula"
    pad: PadModel | None = None

    @classmethod
    def of_pads(cls, on: MeasuredOn, pad: PadModel) -> DeviceModel:
        """Return a model that knows *pad* and no times of GEMM candidates."""
        return cls(
            on=on,
            method=pad.method,
            problems=0,
            models=(),
            templates={},
            categories=(),
            constants={},
            offsets={},
            covering=(),
            measured=(),
            tree=Leaf(0, 0),
            pad=pad,
        )

    @property
    def too_little(self) -> str | None:
        """Why no time must be predicted: trained on too little; None where times may be."""
        if self.problems < MIN_PROBLEMS:
            return f"trained on {self.problems} problems, fewer than {MIN_PROBLEMS}"
        if len(self.models) < MIN_MODELS:
            return f"trained on problems of {len(self.models)} models, fewer than {MIN_MODELS}"
        return None


@dataclass(frozen=True, slots=True)
class PredictedChoice:
    """A config for a problem, with its gain over the library: library time over its own time.

    ``gain`` is as predicted, ``bound`` the lower bound that held-out problems give it.
    """

    config: CandidateConfig
    time_us: float
    library_us: float
    gain: float
    bound: float

    @property
    def is_preferred(self) -> bool:
        """Whether the config is predicted to be faster than the library by more than an error."""
        return self.gain > PREFERRED_GAIN

    @property
    def beats_library(self) -> bool:
        """Whether the bound says that the config is faster than the library."""
        return self.bound > 1


@dataclass
class Predictor:
    """Predicts times from *model*. The same question has the same answer in every process."""

    model: DeviceModel
    _numbers: dict[str, int] = field(default_factory=dict)
    _columns: dict[CandidateConfig, int] = field(default_factory=dict)
    _by_kin: dict[str, list[tuple[Sizes, int, tuple[int | None, ...]]]] = field(
        default_factory=dict
    )
    _ranges: dict[int, tuple[Sizes, Sizes]] = field(default_factory=dict)

    _last: tuple[GemmSizes, list[tuple[float, tuple[int | None, ...]]]] | None = None

    def __post_init__(self) -> None:
        model = self.model
        self._numbers = {name: number for number, name in enumerate(model.categories)}
        columns = (CandidateConfig(LIBRARY_UID), *model.covering)
        self._columns = {config: number for number, config in enumerate(columns)}
        for one in model.measured:
            b, m, n, k = map(math.log2, one.sizes)
            logs = (b, m, n, k)
            kin = kin_of(model.categories[one.category])
            self._by_kin.setdefault(kin, []).append((logs, one.category, one.residuals))
            low, high = self._ranges.get(one.category, (logs, logs))
            self._ranges[one.category] = (
                (min(low[0], b), min(low[1], m), min(low[2], n), min(low[3], k)),
                (max(high[0], b), max(high[1], m), max(high[2], n), max(high[3], k)),
            )

    def unsure(self, sizes: GemmSizes) -> str | None:
        """Return why *sizes* are outside of what was measured; None where they are inside."""
        measured = self._ranges.get(self._numbers.get(sizes.category, -1))
        if measured is None:
            return f"no problem of the category {sizes.category} was measured"
        low, high = measured
        for name, value, least, most in zip("bmnk", sizes.logs, low, high, strict=True):
            if not least <= value <= most:
                return f"{'batch' if name == 'b' else name} is outside of the measured range"
        nearest = self._nearest(sizes)[0][0]
        if nearest > MAX_DISTANCE:
            return f"the nearest measured problem is {nearest:.1f} doublings away"
        return None

    def times_us(self, sizes: GemmSizes, configs: Iterable[CandidateConfig]) -> list[float | None]:
        """Return the predicted time of each of *configs*; None where its template is unknown."""
        near = self._nearest(sizes)
        return [self._time_us(sizes, config, near) for config in configs]

    def choose(self, sizes: GemmSizes) -> PredictedChoice | None:
        """Return the config that is predicted to be fastest, None without a library time.

        Chosen are configs that were measured at half of the nearest problems; None without any. The
        caller asks `unsure` first.
        """
        model, near = self.model, self._nearest(sizes)
        library_us = self._time_us(sizes, CandidateConfig(LIBRARY_UID), near)
        leaf = leaf_of(model.tree, features_of(sizes))
        configs = model.covering
        if model.chooser == "tree":
            configs = configs[leaf.config : leaf.config + 1]
        timed = [
            (us, config)
            for config in configs
            if self._is_measured(config, near)
            and (us := self._time_us(sizes, config, near)) is not None
        ]
        if library_us is None or not timed:
            return None
        us, config = min(timed, key=lambda one: one[0])
        gain = library_us / us
        evidence = leaf.evidence or LeafEvidence(0, math.inf, math.inf, 0.0)
        return PredictedChoice(config, us, library_us, gain, gain * evidence.bound)

    def _is_measured(
        self, config: CandidateConfig, near: Sequence[tuple[float, tuple[int | None, ...]]]
    ) -> bool:
        column = self._columns[config]
        measured = sum(residuals[column] is not None for _, residuals in near)
        return measured >= min(_LEAST_MEASURED, len(near))

    def _time_us(
        self,
        sizes: GemmSizes,
        config: CandidateConfig,
        near: Sequence[tuple[float, tuple[int | None, ...]]],
    ) -> float | None:
        constants = self.model.constants.get((config.uid, sizes.rate))
        if constants is None:
            return None
        column = self._columns.get(config, -1)
        total, weights = 0.0, _SHRINKAGE
        for distance, residuals in near:
            residual = residuals[column]
            if residual is not None:
                weight = math.exp(-distance / _WIDTH)
                total += weight * residual * RESIDUAL_UNIT
                weights += weight
        offset = self.model.offsets.get((config, sizes.rate), 0.0)
        base = time_us(constants, sizes, config, self.model.on.sm_count)
        return base * math.exp(offset + total / weights)

    def _nearest(self, sizes: GemmSizes) -> list[tuple[float, tuple[int | None, ...]]]:
        """Return the nearest measured problems of the same kin, with their distances."""
        last = self._last
        if last is not None and last[0] == sizes:  # `unsure` asks first
            return last[1]
        b, m, n, k = sizes.logs
        number = self._numbers.get(sizes.category, -1)
        nearest: list[tuple[float, int, tuple[int | None, ...]]] = []
        limit = math.inf
        measured = self._by_kin.get(kin_of(sizes.category), ())
        for place, (x, category, residuals) in enumerate(measured):
            m_and_n = abs(x[1] - m) + abs(x[2] - n)
            if m_and_n > limit:  # of most problems this is enough to know
                continue
            distance = abs(x[0] - b) + m_and_n + abs(x[3] - k)
            distance += 0.0 if category == number else _OTHER_CATEGORY
            if distance < limit:
                bisect.insort(nearest, (distance, place, residuals))
                if len(nearest) > NEAREST:
                    nearest.pop()
                    limit = nearest[-1][0]
        near = [(distance, residuals) for distance, _, residuals in nearest]
        self._last = sizes, near
        return near
