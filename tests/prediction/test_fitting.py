"""Fitting: constants of a stated device are found again, and measured times are predicted."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from warmup.core.errors import DeviceModelError
from warmup.prediction import network
from warmup.prediction.device_model import DeviceModel, Predictor
from warmup.prediction.evaluation import Evaluation, evaluate, judge_ranking
from warmup.prediction.features import LIBRARY_CONFIG
from warmup.prediction.fitting import choose_covering, fit
from warmup.prediction.held_out import HeldOut, folds_of, hold_out, share_of, with_evidence
from warmup.prediction.training import TrainingSet
from warmup.prediction.tree import features_of, leaf_of, leaves_of


@pytest.fixture(scope="module")
def one_out(measured: TrainingSet) -> HeldOut:
    """Each measured width of a layer as a model of its own, predicted from the others."""
    problems = (replace(one, source=f"{one.sizes.n} {one.sizes.k}") for one in measured.problems)
    return hold_out(replace(measured, problems=tuple(problems)))[0]


def test_the_times_of_a_stated_device_are_found_again(
    stated: TrainingSet, evaluation: Evaluation
) -> None:
    """On problems it was fitted to, the model is off by less than 3 percent at the median."""
    predictor = Predictor(evaluation.model)
    errors = []
    for one in stated.problems:
        times = predictor.times_us(one.sizes, list(one.times_us))
        pairs = zip(times, one.times_us.values(), strict=True)
        errors += [abs(math.log(us / known)) for us, known in pairs if us is not None]
    assert len(errors) == sum(len(one.times_us) for one in stated.problems)
    assert statistics.median(errors) < 0.03


def test_left_out_layers_of_an_h100_are_predicted(one_out: HeldOut) -> None:
    """Measured times of layers left out of the fit: median error below 20 percent."""
    errors = sorted(abs(error) for one in one_out.problems for error in one.errors)
    assert len(errors) > 300
    assert share_of(errors, 0.5) < 0.20


def test_the_librarys_times_on_an_h200_are_predicted(library_times: TrainingSet) -> None:
    """The library's times in the shipped tables, a quarter of the layers left out at a time.

    The median error is below 10 percent, and nine of ten are below 25 percent.
    """
    layers = sorted({(one.sizes.n, one.sizes.k) for one in library_times.problems})
    errors = []
    for fold in range(4):
        out = set(layers[fold::4])
        kept = [p for p in library_times.problems if (p.sizes.n, p.sizes.k) not in out]
        predictor = Predictor(fit(library_times, kept))
        for one in library_times.problems:
            if (one.sizes.n, one.sizes.k) in out:
                (us,) = predictor.times_us(one.sizes, [LIBRARY_CONFIG])
                assert us is not None
                errors.append(abs(math.log(us / one.library_us)))
    assert len(errors) == len(library_times.problems) > 100
    assert share_of(sorted(errors), 0.5) < 0.10
    assert share_of(sorted(errors), 0.9) < 0.25


def test_the_best_of_eight_predicted_is_the_best_of_an_h100(one_out: HeldOut) -> None:
    """For layers left out of the fit the best of 8 and the library is within 2 percent."""
    assert max(one.regrets[8] for one in one_out.problems) < 1.02


def test_a_held_out_model_leaves_its_sizes_out_too(stated: TrainingSet) -> None:
    """A problem that another model or a random problem shares is not fitted to."""
    shared = replace(stated.problems[0], source="random")
    training = replace(stated, problems=(*stated.problems, shared))
    folds = dict(folds_of(training))
    assert set(folds) == {"a", "b", "c", "d"}
    assert all(one.sizes != shared.sizes for one in folds["a"])
    assert shared in folds["b"]


def test_the_same_timings_give_the_same_model(measured: TrainingSet) -> None:
    """A second fit has the same constants, offsets, residuals and tree."""
    assert fit(measured) == fit(measured)


def test_the_covering_set_has_a_config_near_the_best(stated: TrainingSet) -> None:
    """For each problem some config of the covering set is within 10 percent of the best."""
    covering = choose_covering(stated.problems)
    for one in stated.problems:
        times = {config: us for config, us in one.times_us.items() if not config.is_library}
        assert min(times[config] for config in covering) < 1.1 * min(times.values())
    assert len(covering) <= 16


def test_each_leaf_has_its_held_out_evidence(evaluation: Evaluation) -> None:
    """A leaf says how many held-out problems it had, their regret and the bound of a gain."""
    leaves = [*leaves_of(evaluation.model.tree)]
    evidence = [leaf.evidence for leaf in leaves if leaf.evidence is not None]
    assert len(evidence) == len(leaves)
    assert sum(each.problems for each in evidence) <= len(evaluation.device_model.problems)
    assert all(each.worst >= each.regret >= 1 for each in evidence)
    assert all(0 < each.bound < 1.2 for each in evidence)


def test_a_bound_is_that_of_problems_that_were_predicted_to_gain(evaluation: Evaluation) -> None:
    """Gains of 2 of which nine tenths came true give 0.9, whatever became of predicted losses."""
    half = len(evaluation.device_model.problems) // 2
    problems = tuple(
        replace(one, predicted_gain=2.0, gain=1.8)
        if number < half
        else replace(one, predicted_gain=0.5, gain=0.1)
        for number, one in enumerate(evaluation.device_model.problems)
    )
    model = with_evidence(evaluation.model, HeldOut(problems))
    bounds = {leaf.evidence.bound for leaf in leaves_of(model.tree) if leaf.evidence}
    assert bounds == {0.9}


@pytest.mark.parametrize(("inside", "bound"), [(19, 0.5), (20, 0.9)])
def test_a_leaf_has_a_bound_of_its_own_from_twenty_problems_on(
    evaluation: Evaluation, inside: int, bound: float
) -> None:
    """Among nineteen none is the smallest twentieth: those of all leaves count."""
    model, known = evaluation.model, evaluation.device_model.problems
    leaves = [leaf_of(model.tree, features_of(one.problem.sizes)) for one in known]
    here = known[0]
    other = next(one for one, leaf in zip(known, leaves, strict=True) if leaf is not leaves[0])
    problems = (
        *[replace(here, predicted_gain=2.0, gain=1.8)] * inside,
        *[replace(other, predicted_gain=2.0, gain=1.0)] * 100,
    )
    found = with_evidence(model, HeldOut(problems))
    evidence = leaf_of(found.tree, features_of(here.problem.sizes)).evidence
    assert evidence is not None
    assert (evidence.problems, evidence.bound) == (inside, bound)


def test_what_serving_would_take_is_not_slower_than_the_library(evaluation: Evaluation) -> None:
    """On the stated device no predicted config of a left-out model loses 3 percent."""
    served = [one for one in evaluation.device_model.sure if one.is_predicted]
    assert served
    assert min(one.served_gain for one in served) > 0.97


def test_torchs_ranking_is_judged_on_what_it_ranks(stated: TrainingSet) -> None:
    """Of an mm the best of its first configs and the library counts; no other op is ranked."""
    one = stated.problems[4]
    tiles = [(64, 128, 64, 4, 4), (999, 1, 1, 1, 1)]
    judged = judge_ranking(one, lambda *_sizes, **_layout: tiles)
    assert judged is not None
    us = next(us for c, us in one.times_us.items() if (c.block_m, c.block_n) == (64, 128))
    assert judged.regrets[1] == min(us, one.library_us) / one.best_us
    other = replace(one, sizes=replace(one.sizes, category="bf16 addmm bf16 row col bf16 1d"))
    assert judge_ranking(other, lambda *_sizes, **_layout: tiles) is None
    assert "no config" in str(getattr(judge_ranking(one, lambda *_s, **_l: []), "unsure", ""))


def test_a_network_predicts_every_candidate(
    measured: TrainingSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after few steps each time is a number above the shortest of the training set."""
    monkeypatch.setattr(network, "_TRAINING_STEPS", 10)
    times_us = network.train_network(measured.problems)
    one = measured.problems[0]
    shortest = min(min(each.times_us.values()) for each in measured.problems)
    found = times_us(one.sizes, list(one.times_us))
    assert len(found) == len(one.times_us)
    assert all(us is not None and shortest * 0.99 < us < math.inf for us in found)


def test_a_fitted_model_may_be_refused_before_it_is_judged(stated: TrainingSet) -> None:
    """Judging takes minutes: what cannot be written ends before anything is left out."""
    said: list[str] = []

    def refuse(model: DeviceModel) -> None:
        raise DeviceModelError("x.model.json", f"{len(model.measured)} problems", "fit to fewer")

    with pytest.raises(DeviceModelError, match=f"{len(stated.problems)} problems"):
        evaluate(stated, say=said.append, check=refuse)
    assert said == []


def test_torch_ranks_an_mm() -> None:
    """Its first config has five numbers; another matmul has another ranking."""
    torch_ranking = pytest.importorskip("warmup.inductor.gemm.torch_ranking").torch_ranking
    large, small = (torch_ranking(m, 4096, 4096, b_is_row=False) for m in (1024, 16))
    assert len(large[0]) == 5
    assert large != small
