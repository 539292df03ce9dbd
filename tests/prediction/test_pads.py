"""The pad decisions that are learned from samples, and what is said of them.

Times are stated (stated_pads.py); lines are those that a collection writes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from stated_pads import HERE, drawn_keys, lines_of, stated_us

from warmup.core.errors import SettingsError
from warmup.keys.pad import AS_IS, PADDED
from warmup.keys.pad_text import parse_padding
from warmup.prediction.device_model import DeviceModel
from warmup.prediction.pad.estimate import USUAL_RATES
from warmup.prediction.pad.features import PAD_FEATURES, pad_sizes_of
from warmup.prediction.pad.pad_fitting import LEAST_CONFIRMED, fit_pads, part_of
from warmup.prediction.pad.pad_model import (
    WORST_LOSS,
    PadAnswer,
    PadModel,
    pad_leaves_of,
)
from warmup.prediction.pad.samples import PadSample, PadSamples, pad_samples, read_paddings
from warmup.prediction.pad.strategies import PadEvaluation, evaluate_pads
from warmup.prediction.predictions import Predictions

LAYERS = (
    "pad mm m=8192 n=8192 k=4095 bf16 a=row b=col",
    "pad mm m=640 n=1280 k=588 bf16 a=row b=col",
)


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> PadSamples:
    """Eight hundred samples and two layers; inductor's own calls make padding look slower."""
    folder = tmp_path_factory.mktemp("pads")
    own = {PADDED: 1.25}
    drawn = write_lines(folder / "pad.jsonl", [*lines_of(drawn_keys(800), own=own)])
    layers = write_lines(folder / "vit.jsonl", [*lines_of(LAYERS, source="vit.py", own=own)])
    return pad_samples(read_paddings([drawn, layers]))


@pytest.fixture(scope="module")
def evaluation(samples: PadSamples) -> PadEvaluation:
    """What is learned of them; torch's own heuristic is said to pad everything."""
    return evaluate_pads(samples, lambda _key: True)


def test_a_line_gives_the_times_as_they_run_and_those_of_inductors_calls(
    samples: PadSamples,
) -> None:
    """The region's times are fitted to; inductor's own are kept to compare with."""
    one = samples.drawn[0]
    times = stated_us(parse_padding(one.key))
    assert (one.as_is_us, one.padded_us) == pytest.approx((times[AS_IS], times[PADDED]), abs=0.01)
    assert one.own_us == pytest.approx((times[AS_IS], 1.25 * times[PADDED]), abs=0.01)
    assert (len(samples.drawn), [layer.source for layer in samples.layers]) == (800, ["vit.py"] * 2)


def test_held_out_samples_are_decided_nearly_as_well_as_by_measuring(
    evaluation: PadEvaluation,
) -> None:
    """On this stated machine: 95 % of the best gain, and no case more than 5 % slower."""
    outcome = evaluation.drawn.outcomes["device_model"]
    assert outcome.cases == 800
    assert outcome.share is not None
    assert outcome.share > 0.95
    assert outcome.slower == 0
    assert evaluation.drawn.outcomes["always"].slower > 100


def test_each_strategy_is_judged_by_its_own_decisions(evaluation: PadEvaluation) -> None:
    """Never gains nothing, the best loses nothing; the others are what they decide."""
    found = evaluation.drawn.outcomes
    assert (found["never"].gain, found["never"].padded) == (1.0, 0)
    assert (found["best"].share, found["best"].worst) == (1.0, 1.0)
    assert found["always"].padded == found["pad_mm_heuristic"].padded == 800
    pads = sum(
        one.own_us is not None and one.own_us[0] > 1.1 * one.own_us[1]
        for one in evaluation.samples.drawn
    )
    assert found["pad_mm"].padded == pads
    assert 0 < pads < found["best"].padded


def test_torchs_pass_measures_where_its_heuristic_is_unsure(samples: PadSamples) -> None:
    """Then both strategies of torch decide alike; without a heuristic there is only one."""
    unsure = evaluate_pads(samples, lambda _key: None).drawn.outcomes
    assert unsure["pad_mm_heuristic"] == unsure["pad_mm"]
    assert "pad_mm_heuristic" not in evaluate_pads(samples, None).drawn.outcomes


def test_equal_sizes_are_held_out_together() -> None:
    """Another dtype or layout of the same sizes is in the same part."""
    keys = [f"pad mm m=33 n=65 k=129 {rest}" for rest in ("bf16 a=row b=col", "f16 a=col b=row")]
    parts = {part_of(sizes, 5, "fold") for key in keys if (sizes := pad_sizes_of(key))}
    assert len(parts) == 1


def test_layers_are_never_fitted_to(samples: PadSamples, evaluation: PadEvaluation) -> None:
    """The model is the same without them, and a layer of drawn sizes is not judged."""
    assert evaluate_pads(replace(samples, layers=()), None).model == evaluation.model
    assert evaluation.layers.cases == 2


def test_a_layer_of_drawn_sizes_is_left_out(tmp_path: Path) -> None:
    """Its time was fitted to, so that it would not be held out."""
    keys = drawn_keys(3)
    path = write_lines(tmp_path / "x.jsonl", [*lines_of(keys), *lines_of(keys[:1], source="a.py")])
    found = pad_samples(read_paddings([path]))
    assert (found.layers, dict(found.left_out)) == (
        (),
        {"layers of sizes that were drawn too": 1},
    )


def test_a_sure_leaf_loses_nothing_on_its_samples(samples: PadSamples) -> None:
    """Each has samples that it was not grown from, and a bound that they all keep."""
    model = fit_pads(samples.drawn, "eager cold")
    sure = [leaf for leaf in pad_leaves_of(model.tree) if leaf.answer is not PadAnswer.UNSURE]
    assert {leaf.answer for leaf in sure} == {PadAnswer.AS_IS, PadAnswer.PADDED}
    for leaf in sure:
        assert leaf.confirmed >= LEAST_CONFIRMED
        assert leaf.bound >= 1 / WORST_LOSS
    for one in samples.drawn:
        answer = PadAnswer.UNSURE if one.sizes is None else model.answer(one.sizes)
        if answer is not PadAnswer.UNSURE:
            assert one.time_us(pads=answer is PadAnswer.PADDED) / one.best_us <= WORST_LOSS


def test_times_without_a_pattern_are_unsure(samples: PadSamples) -> None:
    """Where chance decides which way is faster, no leaf answers."""
    chance = random.Random(7)  # noqa: S311  no secret
    noise = [
        replace(one, as_is_us=chance.choice((5.0, 20.0)), padded_us=10.0) for one in samples.drawn
    ]
    model = fit_pads(noise, "eager cold")
    answered = sum(
        leaf.grown for leaf in pad_leaves_of(model.tree) if leaf.answer is not PadAnswer.UNSURE
    )
    assert answered < len(noise) / 20


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("pad mm m=999 n=999 k=999 f16 a=row b=col", "category mm f16"),
        ("pad mm m=999 n=999 k=70001 bf16 a=row b=col", "k is outside"),
    ],
)
def test_outside_of_what_was_sampled_the_model_is_unsure(
    evaluation: PadEvaluation, key: str, reason: str
) -> None:
    """Other dtypes, and larger sizes."""
    sizes = pad_sizes_of(key)
    assert sizes is not None
    assert reason in (evaluation.model.unsure(sizes) or "")
    assert evaluation.model.answer(sizes) is PadAnswer.UNSURE


@pytest.mark.parametrize(
    "key",
    [
        "pad mm m=2..64 n=999 k=999 bf16 a=row b=col",
        "pad bmm batch=4 m=999 n=999 k=999 bf16 a=row b=col",
        "pad addmm m=999 n=999 k=999 bf16 a=row b=col bias=1d",
        "pad mm m=999 n=999 k=999 bf16 a=row/1024 b=col",
        "mm m=16 n=96 k=64 f32 a=row b=row out=f32 | epilogue=none",
    ],
)
def test_nothing_is_predicted_of_forms_that_are_not_sampled(key: str) -> None:
    """Ranges, batches, a bias, gaps between rows, keys of other kinds."""
    assert pad_sizes_of(key) is None


def test_features_say_what_is_copied_and_aligned() -> None:
    """k=3420 in bf16 lies on multiples of 8 bytes; a free operand and a size of 1 cost nothing."""
    plain, free, row = (
        dict(zip(PAD_FEATURES, sizes.features(USUAL_RATES), strict=True))
        for key in (
            "pad mm m=560 n=1280 k=3420 bf16 a=row b=col",
            "pad mm m=560 n=1280 k=3420 bf16 a=row b=col free=a",
            "pad mm m=1 n=1280 k=3424 bf16 a=row b=row",
        )
        if (sizes := pad_sizes_of(key))
    )
    assert (plain["a_alignment"], plain["n_alignment"], plain["b_transposed"]) == (3.0, 4.0, 1.0)
    assert 2 ** plain["copied_per_operation"] == pytest.approx(
        (560 * 3420 + 1280 * 3420) / (560 * 1280 * 3420)
    )
    assert free["copied_per_operation"] < plain["copied_per_operation"]
    assert (row["added_operations"], row["copied_per_operation"]) == (0.0, -64.0)


def test_predictions_answer_with_a_winner(samples: PadSamples, evaluation: PadEvaluation) -> None:
    """The leaf's answer, its gain and bound; nothing without pad decisions, or where unsure."""
    model = DeviceModel.of_pads(samples.on, evaluation.model)
    predictions, none = Predictions.of(model), Predictions.of(replace(model, pad=None))
    found = {one.key: predictions.predict_winner(one.key) for one in samples.drawn}
    assert {each.winner for each in found.values() if each is not None} == {AS_IS, PADDED}
    for one in samples.drawn:
        assert one.sizes is not None
        leaf, answer = evaluation.model.leaf(one.sizes), found[one.key]
        assert leaf is not None
        if answer is None:
            assert leaf.answer is PadAnswer.UNSURE
        else:
            assert (str(answer.winner), answer.gain) == (leaf.answer, leaf.gain)
    assert none.predict_winner(samples.drawn[0].key) is None


def test_a_model_of_few_samples_says_so(evaluation: PadEvaluation) -> None:
    """It must not be used."""
    assert evaluation.model.too_little is None
    few: PadModel = replace(evaluation.model, samples=199)
    assert few.too_little == "pad decisions trained on 199 samples, fewer than 200"


Line = dict[str, object]


def changed(line: str, **fields: object) -> str:
    return json.dumps({**json.loads(line), **fields})


def without_region(line: str) -> str:
    found = json.loads(line)
    for candidate in found["candidates"]:
        candidate["fused_us"] = None
    return json.dumps(found)


def test_lines_that_cannot_be_fitted_to_are_counted_by_reason(tmp_path: Path) -> None:
    """Disturbed times, no GPU, and decisions by inductor's own calls."""
    good, disturbed, cpu, own = lines_of(drawn_keys(4))
    device = {**json.loads(cpu)["device"], "sm_count": 0}
    lines = [good, changed(disturbed, flags=["unstable"]), changed(cpu, device=device)]
    found = pad_samples(
        read_paddings([write_lines(tmp_path / "x.jsonl", [*lines, without_region(own)])])
    )
    assert len(found.drawn) == 1
    assert sorted(found.left_out.values()) == [1, 1, 1]
    assert "not timed both ways as they will run" in found.left_out


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"torch": "2.14.0"}, "different torch versions: 2.13, 2.14"),
        ({"method": "cudagraph cold"}, "different methods: cudagraph cold, eager cold"),
    ],
)
def test_samples_of_different_origins_are_refused(
    tmp_path: Path, fields: dict[str, object], said: str
) -> None:
    """Times of two versions, or by two methods, do not belong together."""
    one, other = lines_of(drawn_keys(2))
    path = write_lines(tmp_path / "x.jsonl", [one, changed(other, **fields)])
    with pytest.raises(SettingsError, match=said):
        pad_samples(read_paddings([path]))


def test_layers_alone_are_nothing_to_fit_to(tmp_path: Path) -> None:
    """The error says how many decisions there were, and what to run."""
    path = write_lines(tmp_path / "x.jsonl", [*lines_of(LAYERS, source="vit.py")])
    with pytest.raises(SettingsError, match="no drawn sample among 2 pad decisions"):
        pad_samples(read_paddings([path]))


def test_the_last_line_of_a_key_counts(tmp_path: Path) -> None:
    """A sample that was measured again."""
    (line,) = lines_of(drawn_keys(1))
    path = write_lines(tmp_path / "x.jsonl", [line, changed(line, method="cudagraph cold")])
    (found,) = read_paddings([path])
    assert found.method == "cudagraph cold"


def test_a_sample_is_where_it_was_measured(samples: PadSamples) -> None:
    """The device and its versions are those of the lines."""
    assert (samples.on.device, samples.on.torch) == (HERE.device.name, HERE.torch)
    assert isinstance(samples.drawn[0], PadSample)
