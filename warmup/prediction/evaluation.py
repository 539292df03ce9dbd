"""`evaluate`: the held-out predictions of a training set, and its device model if it is enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from warmup.prediction.device_model import DeviceModel
from warmup.prediction.fitting import fit
from warmup.prediction.held_out import HeldOut, folds_of, hold_out, judge, with_evidence
from warmup.prediction.training import TrainingSet


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A device model with its held-out evidence, and the network's held-out predictions."""

    training: TrainingSet
    model: DeviceModel
    device_model: HeldOut
    network: HeldOut | None


def evaluate(
    training: TrainingSet, *, network: bool, say: Callable[[str], None] = lambda _line: None
) -> Evaluation:
    """Fit a device model to *training*, and judge it on each model left out of the fit.

    With *network* the network is trained and judged on the same problems.
    """
    held_out, chooser = hold_out(training, lambda source: say(f"held out: {source}"))
    model = with_evidence(replace(fit(training), chooser=chooser), held_out)
    compared = _of_network(training, held_out, say) if network else None
    return Evaluation(training, model, held_out, compared)


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
