"""`evaluate`: the held-out predictions of a training set, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from warmup.prediction.device_model import DeviceModel
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
from warmup.prediction.training import TrainingProblem, TrainingSet

# From m, n and k to blocks of m, n and k, stages and warps, most promising first.
Ranking = Callable[..., Sequence[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A device model with its held-out evidence, and what else was judged on the same problems.

    ``compared`` has, by name, the network and torch's own ranking; empty where nothing was asked.
    """

    training: TrainingSet
    model: DeviceModel
    device_model: HeldOut
    compared: dict[str, HeldOut]


def evaluate(
    training: TrainingSet,
    *,
    ranking: Ranking | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> Evaluation:
    """Fit a device model to *training*, and judge it on each model left out of the fit.

    With *ranking*, torch's own, that and a network are judged on the same problems.
    """
    held_out, chooser = hold_out(training, lambda source: say(f"held out: {source}"))
    model = with_evidence(replace(fit(training), chooser=chooser), held_out)
    compared = {}
    if ranking is not None:
        compared["network"] = _of_network(training, held_out, say)
        ranked = (judge_ranking(one.problem, ranking) for one in held_out.problems)
        compared["torch_ranking"] = HeldOut(tuple(one for one in ranked if one is not None))
    return Evaluation(training, model, held_out, compared)


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
