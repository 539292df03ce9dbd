"""`HeldOut`: what device models predict for models that were left out of the fit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from warmup.prediction.device_model import PREFERRED_GAIN, DeviceModel, PredictedChoice, Predictor
from warmup.prediction.features import LIBRARY_CONFIG, CandidateConfig, GemmSizes
from warmup.prediction.fitting import fit
from warmup.prediction.training import TrainingProblem, TrainingSet
from warmup.prediction.tree import Fork, LeafEvidence, Tree, features_of, leaf_of

TOPS: Final = (1, 3, 8)
_BOUND_SHARE: Final = 0.05  # of gains that may be smaller than their bound
# Held-out problems of a leaf, below which those of all leaves count: among fewer than twenty none
# is the smallest twentieth.
_LEAST_EVIDENCE: Final = 20

Times = Callable[[GemmSizes, Sequence[CandidateConfig]], Sequence[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutProblem:
    """What was predicted for a problem of *source* by a model fitted without that source.

    ``errors`` are logarithms of predicted over measured time, of each candidate. ``regrets`` has,
    by number of candidates tried, the best of their times over the best time; the library counts as
    tried, except for 1. ``library`` is the library's time over the best. ``gain`` is the measured
    time of the library over that of the chosen config, ``predicted_gain`` what was predicted; None
    where nothing was chosen or the chosen config was not measured. ``bound`` is the factor that
    gives a gain its lower bound.
    """

    problem: TrainingProblem
    unsure: str | None
    errors: tuple[float, ...]
    regrets: Mapping[int, float]
    gain: float | None = None
    predicted_gain: float | None = None
    choice_regret: float | None = None
    bound: float = 0.0
    predicted_us: tuple[tuple[float, float], ...] = ()

    @property
    def library_regret(self) -> float:
        """The time of the library over the best time."""
        return self.problem.library_us / self.problem.best_us

    @property
    def is_predicted(self) -> bool:
        """Whether serving would take the predicted config."""
        if self.unsure is not None or self.predicted_gain is None:
            return False
        return self.predicted_gain * self.bound > 1

    @property
    def served_gain(self) -> float:
        """The library's time over the time of what serving would take."""
        return self.gain if self.is_predicted and self.gain is not None else 1.0


@dataclass(frozen=True, slots=True)
class HeldOut:
    """All held-out problems of a training set, by how their times were predicted."""

    problems: tuple[HeldOutProblem, ...]

    def of(self, source: str) -> HeldOut:
        """Return the problems of *source* alone."""
        return HeldOut(tuple(one for one in self.problems if one.problem.source == source))

    @property
    def sure(self) -> tuple[HeldOutProblem, ...]:
        """The problems inside of what was measured."""
        return tuple(one for one in self.problems if one.unsure is None)


def folds_of(training: TrainingSet) -> Iterator[tuple[str, list[TrainingProblem]]]:
    """Yield each source with the problems to fit to when it is held out.

    A problem that a held-out model shares with another model, or with a random problem, is left out
    too. All other random problems stay.
    """
    for source in training.models:
        if kept := problems_without(training, [source]):
            yield source, kept


def problems_without(training: TrainingSet, sources: Sequence[str]) -> list[TrainingProblem]:
    """Return the problems of *training* without those of *sources* and all of the same sizes."""
    held = {one.sizes for one in training.problems if one.source in sources}
    return [one for one in training.problems if one.source not in sources and one.sizes not in held]


def hold_out(
    training: TrainingSet, progress: Callable[[str], None] = lambda _family: None
) -> tuple[HeldOut, str]:
    """Return what models fitted without each source predict for it, and the better chooser.

    The chooser is ``tree`` or ``formula``: whose choices lose less against the best.
    """
    found: dict[str, list[HeldOutProblem]] = {"formula": [], "tree": []}
    trees: dict[str, Tree] = {}
    for source, kept in folds_of(training):
        progress(source)
        model = fit(training, kept)
        trees[source] = model.tree
        for chooser, problems in found.items():
            predictor = Predictor(replace(model, chooser=chooser))
            problems += [
                judge(one, predictor.times_us, predictor)
                for one in training.problems
                if one.source == source
            ]
    chooser = min(
        ("formula", "tree"),
        key=lambda name: mean_log(one.choice_regret for one in found[name] if one.choice_regret),
    )
    with_bounds = tuple(_with_bound(one, found[chooser], trees) for one in found[chooser])
    return HeldOut(with_bounds), chooser


def judge(
    one: TrainingProblem, times_us: Times, predictor: Predictor | None = None
) -> HeldOutProblem:
    """Return how good *times_us* are for the problem *one*; *predictor* chooses a config for it.

    The bound is that of the predictor's tree, 0 where its leaves have no evidence.
    """
    configs = sorted(one.times_us, key=str)
    pairs = [
        (config, predicted)
        for config, predicted in zip(configs, times_us(one.sizes, configs), strict=True)
        if predicted is not None
    ]
    templates = sorted(
        ((us, str(config), config) for config, us in pairs if not config.is_library),
        key=lambda each: each[:2],
    )
    ranked = [config for *_, config in templates]
    best, library = one.best_us, one.library_us
    regrets: dict[int, float] = {}
    for top in TOPS:
        tried = [one.times_us[config] for config in ranked[:top]]
        regrets[top] = min([library, *tried]) / best
    predicted_library = dict(pairs).get(LIBRARY_CONFIG)
    if ranked and predicted_library is not None:
        is_preferred = predicted_library / templates[0][0] > PREFERRED_GAIN
        first = ranked[0] if is_preferred else LIBRARY_CONFIG
        regrets[1] = one.times_us[first] / best
    choice: PredictedChoice | None = None if predictor is None else predictor.choose(one.sizes)
    chosen_us = None if choice is None else one.times_us.get(choice.config)
    return HeldOutProblem(
        problem=one,
        unsure=None if predictor is None else predictor.unsure(one.sizes),
        errors=tuple(math.log(us / one.times_us[config]) for config, us in pairs),
        regrets=regrets,
        gain=None if chosen_us is None else library / chosen_us,
        predicted_gain=None if chosen_us is None or choice is None else choice.gain,
        choice_regret=None if chosen_us is None else chosen_us / best,
        bound=0.0 if choice is None else choice.bound / choice.gain,
        predicted_us=tuple((one.times_us[config], us) for config, us in pairs),
    )


def with_evidence(model: DeviceModel, held_out: HeldOut) -> DeviceModel:
    """Return *model* with the evidence of *held_out* in each leaf of its tree."""

    def proved(tree: Tree) -> Tree:
        if isinstance(tree, Fork):
            return replace(tree, low=proved(tree.low), high=proved(tree.high))
        return replace(tree, evidence=_evidence(inside[id(tree)], held_out.problems))

    inside: dict[int, list[HeldOutProblem]] = defaultdict(list)
    for one in held_out.problems:
        inside[id(leaf_of(model.tree, features_of(one.problem.sizes)))].append(one)
    return replace(model, tree=proved(model.tree))


def _with_bound(
    one: HeldOutProblem, others: Sequence[HeldOutProblem], trees: Mapping[str, Tree]
) -> HeldOutProblem:
    """Return *one* with a bound from the errors of other models in its leaf."""
    source = one.problem.source
    leaf = leaf_of(trees[source], features_of(one.problem.sizes))
    rest = [each for each in others if each.problem.source != source]
    beside = [
        each for each in rest if leaf_of(trees[source], features_of(each.problem.sizes)) is leaf
    ]
    return replace(one, bound=_evidence(beside, rest).bound)


def _evidence(
    inside: Sequence[HeldOutProblem], everywhere: Sequence[HeldOutProblem]
) -> LeafEvidence:
    regrets = [one.choice_regret for one in inside if one.choice_regret is not None]
    ratios = _ratios(inside)
    counted = ratios if len(ratios) >= _LEAST_EVIDENCE else sorted([*ratios, *_ratios(everywhere)])
    bound = share_of(counted, _BOUND_SHARE) if len(counted) >= _LEAST_EVIDENCE else 0.0
    return LeafEvidence(
        len(regrets),
        round(math.exp(mean_log(regrets)), 4) if regrets else 1.0,
        round(max(regrets, default=1.0), 4),
        round(bound, 4),
    )


def _ratios(problems: Iterable[HeldOutProblem]) -> list[float]:
    """Return measured over predicted gain, ascending, of problems that were predicted to gain.

    Others say little of those that serving takes: of two equal configs that is the config whose
    gain is predicted too large.
    """
    return sorted(
        one.gain / one.predicted_gain
        for one in problems
        if one.gain is not None and one.predicted_gain is not None and one.predicted_gain > 1
    )


def mean_log(values: Iterable[float]) -> float:
    """Return the mean of the logarithms of *values*; 0 without values."""
    logs = [math.log(value) for value in values]
    return math.fsum(logs) / len(logs) if logs else 0.0


def share_of(values: Sequence[float], share: float) -> float:
    """Return the value below which *share* of the ascending *values* are, the nearest at hand."""
    return values[min(int(share * len(values)), len(values) - 1)]
