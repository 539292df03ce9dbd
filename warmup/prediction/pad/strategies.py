"""`evaluate_pads`: what pad decisions are worth on samples that were left out of the fit.

Five trees are fitted, each without a fifth of the sizes, and judged on that fifth. Layers of models
are never fitted to: the tree of all samples is judged on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from warmup.prediction.pad.pad_fitting import fit_pads, part_of
from warmup.prediction.pad.pad_model import PadAnswer, PadModel
from warmup.prediction.pad.samples import PadSample, PadSamples

FOLDS: Final = 5
PASS_MULTIPLIER: Final = 1.1  # by which padding must be faster for inductor's own pass
SLOWER_THAN_NEVER: Final = 1.05
HELD_OUT_SAMPLES: Final = f"{FOLDS} parts by size, each left out of the fit in turn"
HELD_OUT_LAYERS: Final = "no layer of a model is fitted to"

# Whether torch's learned heuristic pads a key; None where it is unsure or does not apply.
PadHeuristic = Callable[[str], bool | None]


@dataclass(frozen=True, slots=True)
class StrategyOutcome:
    """What one way to decide is worth against never padding.

    ``gain`` is the geometric mean of the time as it is over the time of the decision, ``share`` the
    part of the gain of always taking the better way, as logarithms; None without such gain.
    ``worst`` is the smallest gain, ``slower`` counts cases more than 5 % slower than never padding.
    """

    cases: int
    padded: int
    gain: float
    share: float | None
    worst: float
    slower: int


@dataclass(frozen=True, slots=True)
class JudgedPads:
    """Cases that were judged, how they were held out, and the outcome of each strategy by name.

    ``unsure`` counts those for which the model does not answer.
    """

    cases: int
    held_out: str
    unsure: int
    outcomes: Mapping[str, StrategyOutcome]


@dataclass(frozen=True, slots=True)
class PadEvaluation:
    """A pad model and what it is worth on held-out samples and on layers of models."""

    samples: PadSamples
    model: PadModel
    drawn: JudgedPads
    layers: JudgedPads


def evaluate_pads(samples: PadSamples, heuristic: PadHeuristic | None) -> PadEvaluation:
    """Fit a pad model to the drawn *samples*, and judge it on those left out, and on the layers.

    *heuristic* is torch's own, None where it has none for the device.
    """
    model = fit_pads(samples.drawn, samples.method)
    answers = {one.key: answer for one, answer in _held_out(samples)}
    of_layers = {one.key: _answer(model, one) for one in samples.layers}
    return PadEvaluation(
        samples,
        model,
        _judge(samples.drawn, answers, heuristic, HELD_OUT_SAMPLES),
        _judge(samples.layers, of_layers, heuristic, HELD_OUT_LAYERS),
    )


def _held_out(samples: PadSamples) -> Iterable[tuple[PadSample, PadAnswer]]:
    """Yield each drawn sample with the answer of the tree that was fitted without its sizes."""
    folds = [
        (one, part_of(one.sizes, FOLDS, "fold")) for one in samples.drawn if one.sizes is not None
    ]
    for fold in range(FOLDS):
        kept = [one for one, part in folds if part != fold]
        model = fit_pads(kept, samples.method)
        yield from ((one, _answer(model, one)) for one, part in folds if part == fold)


def _answer(model: PadModel, one: PadSample) -> PadAnswer:
    return PadAnswer.UNSURE if one.sizes is None else model.answer(one.sizes)


def _judge(
    cases: Sequence[PadSample],
    answers: Mapping[str, PadAnswer],
    heuristic: PadHeuristic | None,
    held_out: str,
) -> JudgedPads:
    strategies: dict[str, Callable[[PadSample], bool | None]] = {
        "never": lambda _one: False,
        "always": lambda _one: True,
        "pad_mm": _of_pass,
        "pad_mm_heuristic": lambda one: _of_heuristic(one, heuristic),
        "device_model": lambda one: answers[one.key] is PadAnswer.PADDED,
        "best": lambda one: one.padded_us < one.as_is_us,
    }
    outcomes = {}
    for name, decide in strategies.items():
        decided = [(one, pads) for one in cases if (pads := decide(one)) is not None]
        if decided:
            outcomes[name] = _outcome(decided)
    unsure = sum(answers[one.key] is PadAnswer.UNSURE for one in cases)
    return JudgedPads(len(cases), held_out, unsure, outcomes)


def _of_pass(one: PadSample) -> bool | None:
    """Return what inductor's pass decides by the times of its own calls; None without them."""
    if one.own_us is None:
        return None
    as_is, padded = one.own_us
    return as_is > padded * PASS_MULTIPLIER


def _of_heuristic(one: PadSample, heuristic: PadHeuristic | None) -> bool | None:
    """Return what the pass decides with AutoHeuristic: where that is unsure, it measures."""
    if heuristic is None:
        return None
    pads = heuristic(one.key)
    return _of_pass(one) if pads is None else pads


def _outcome(decided: Sequence[tuple[PadSample, bool]]) -> StrategyOutcome:
    gains = [one.gain(pads=pads) for one, pads in decided]
    total = math.fsum(map(math.log, gains))
    best = math.fsum(math.log(one.as_is_us / one.best_us) for one, _ in decided)
    return StrategyOutcome(
        cases=len(decided),
        padded=sum(pads for _, pads in decided),
        gain=round(math.exp(total / len(decided)), 4),
        share=round(total / best, 4) if best > 0 else None,
        worst=round(min(gains), 4),
        slower=sum(gain < 1 / SLOWER_THAN_NEVER for gain in gains),
    )
