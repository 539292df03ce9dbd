"""`evaluate`: the held-out predictions of a training set, and what they are compared with.

`judge_unseen` judges a device model that was fitted before, on timings that came later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from warmup.core.errors import SettingsError
from warmup.prediction.device_model import DeviceModel, Predictor
from warmup.prediction.fitting import fit
from warmup.prediction.held_out import (
    TOPS,
    HeldOut,
    HeldOutProblem,
    folds_of,
    hold_out,
    judge,
    with_evidence,
)
from warmup.prediction.model_file import origin_difference
from warmup.prediction.training import TrainingProblem, TrainingSet

EACH_MODEL: Final = "each model in turn, with its sizes left out of the fit; random problems stay"
UNSEEN: Final = "problems of sizes that the device model was not fitted to"
_SEEN: Final = "of sizes that the device model was fitted to"

# From m, n and k to blocks of m, n and k, stages and warps, most promising first.
Ranking = Callable[..., Sequence[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A device model with its held-out evidence, and what else was judged on the same problems.

    ``compared`` has, by name, the network and torch's own ranking; empty where nothing was asked.
    ``how`` says how the problems were held out.
    """

    training: TrainingSet
    model: DeviceModel
    device_model: HeldOut
    compared: dict[str, HeldOut]
    how: str = EACH_MODEL


def evaluate(
    training: TrainingSet,
    *,
    ranking: Ranking | None = None,
    say: Callable[[str], None] = lambda _line: None,
    check: Callable[[DeviceModel], object] = lambda _model: None,
) -> Evaluation:
    """Fit a device model to *training*, and judge it on each model left out of the fit.

    With *ranking*, torch's own, that and a network are judged on the same problems. *check* is
    called with the model before it is judged, which takes minutes, and may raise.
    """
    fitted = fit(training)
    check(fitted)
    held_out, chooser = hold_out(training, lambda source: say(f"held out: {source}"))
    model = with_evidence(replace(fitted, chooser=chooser), held_out)
    compared = {}
    if ranking is not None:
        compared["network"] = _of_network(training, held_out, say)
        ranked = (judge_ranking(one.problem, ranking) for one in held_out.problems)
        compared["torch_ranking"] = HeldOut(tuple(one for one in ranked if one is not None))
    return Evaluation(training, model, held_out, compared)


def judge_unseen(model: DeviceModel, timed: TrainingSet) -> Evaluation:
    """Judge *model* on the problems of *timed* that have other sizes than those it was fitted to.

    Nothing is fitted. The method of the times may be another than the model's.

    Raises:
        SettingsError: the times are of another device, of another minor of torch or Triton or of
            other templates than the model, or the model was fitted to all sizes of *timed*.
    """
    _check_same_origin(model, timed)
    seen = {(one.sizes, model.categories[one.category]) for one in model.measured}
    unseen = tuple(
        one
        for one in timed.problems
        if ((one.sizes.batch, one.sizes.m, one.sizes.n, one.sizes.k), one.sizes.category)
        not in seen
    )
    if not unseen:
        raise SettingsError(
            "the device model was fitted to every problem of the timings",
            "judge it on timings of a later build",
        )
    left_out = {**timed.left_out, _SEEN: len(timed.problems) - len(unseen)}
    predictor = Predictor(model)
    return Evaluation(
        replace(timed, problems=unseen, left_out={why: n for why, n in left_out.items() if n}),
        model,
        HeldOut(tuple(judge(one, predictor.times_us, predictor) for one in unseen)),
        {},
        UNSEEN,
    )


def _check_same_origin(model: DeviceModel, timed: TrainingSet) -> None:
    advice = "judge it on timings of its own device and versions"
    if (difference := origin_difference(model.on, timed.on)) is not None:
        raise SettingsError(f"the device model is {difference} (the timings)", advice)
    for uid, source in timed.templates.items():
        if model.templates.get(uid, source) != source:
            reason = f"the device model was fitted to another version of the template {uid}"
            raise SettingsError(reason, advice)


def judge_ranking(one: TrainingProblem, ranking: Ranking) -> HeldOutProblem | None:
    """Return how good *ranking* is for *one*; None for an op or a dtype that it does not rank.

    The library's kernel always counts as tried. Unsure where no candidate of the ranking was
    measured.
    """
    rate, op, *words = one.sizes.category.split(" ")
    if op != "mm" or rate != "bf16":
        return None
    sizes = one.sizes
    b_is_row = words[2] == "row"
    tiles = {
        (each.block_m, each.block_n, each.block_k, each.stages, each.warps): us
        for each, us in one.times_us.items()
        if each.uid == "triton::mm"
    }
    ranked = ranking(sizes.m, sizes.n, sizes.k, b_is_row=b_is_row)
    tried = [tiles[tile] for tile in ranked if tile in tiles]
    best, library = one.best_us, one.library_us
    return HeldOutProblem(
        problem=one,
        unsure=None if tried else "no config of the ranking was measured",
        errors=(),
        regrets={top: min([library, *tried[:top]]) / best for top in TOPS},
    )


def _of_network(
    training: TrainingSet, device_model: HeldOut, say: Callable[[str], None]
) -> HeldOut:
    """Return the network's predictions; the problems outside of the range are the same."""
    from warmup.prediction.network import train_network

    unsure = {one.problem.key: one.unsure for one in device_model.problems}
    problems = []
    for source, kept in folds_of(training):
        say(f"held out, network: {source}")
        times_us = train_network(kept)
        held = (one for one in training.problems if one.source == source)
        problems += [replace(judge(one, times_us), unsure=unsure[one.key]) for one in held]
    return HeldOut(tuple(problems))
