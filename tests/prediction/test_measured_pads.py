"""Pad decisions learned from samples that were measured on an H200 and an H100."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from warmup.prediction.model_file import read_device_model
from warmup.prediction.pad.estimate import USUAL_RATES, GemmWays
from warmup.prediction.pad.features import PAD_FEATURES, pad_sizes_of
from warmup.prediction.pad.pad_fitting import fit_pads
from warmup.prediction.pad.pad_model import WORST_LOSS, PadAnswer
from warmup.prediction.pad.samples import PadSample, PadSamples, pad_samples, read_paddings
from warmup.prediction.pad.strategies import evaluate_pads

ROOT = Path(__file__).resolve().parents[2]
TIMINGS = ROOT / "docs/benchmarks/results/timings"
ODD = GemmWays(
    dims=(2048, 2047, 4095),
    padded=(2048, 2048, 4096),
    item_bytes=2,
    is_tf32=False,
    alignment=1,
    is_free=(False, False),
)


def measured(gpu: str) -> PadSamples:
    return pad_samples(read_paddings([TIMINGS / f"{gpu}-pads.jsonl.gz"]))


@pytest.fixture(scope="module")
def h200() -> PadSamples:
    """The samples of an H200."""
    return measured("h200")


def test_held_out_samples_of_an_h200_gain_and_none_is_slower(h200: PadSamples) -> None:
    """Over 95 % of the best gain, no sample more than 5 % slower; pad_mm has fourteen."""
    outcomes = evaluate_pads(h200, None).drawn.outcomes
    learned = outcomes["device_model"]
    assert (learned.cases, learned.slower, outcomes["pad_mm"].slower) == (425, 0, 14)
    assert learned.share is not None
    assert learned.share > 0.95


def test_a_tree_of_the_h200_decides_well_about_samples_of_an_h100(h200: PadSamples) -> None:
    """The tree and the rates of the H200 hold for samples that nothing was fitted to."""
    model = fit_pads(h200.drawn, h200.method)

    def time_us(one: PadSample) -> float:
        assert one.sizes is not None
        return one.time_us(pads=model.answer(one.sizes) is PadAnswer.PADDED)

    others = measured("h100").drawn
    gained = [math.log(one.as_is_us / time_us(one)) for one in others]
    best = [math.log(one.as_is_us / one.best_us) for one in others]
    assert len(others) == 53
    assert all(time_us(one) <= WORST_LOSS * one.as_is_us for one in others)
    assert math.fsum(gained) > 0.9 * math.fsum(best)


def test_the_shipped_model_of_an_h200_has_the_tree_of_these_samples(h200: PadSamples) -> None:
    """A fit to the samples beside the results gives the section that ships, rates and all."""
    shipped = read_device_model(ROOT / "warmup/prediction/models/nvidia-h200.model.json")
    assert shipped.pad == fit_pads(h200.drawn, h200.method)


def test_the_estimate_grows_as_alignment_falls() -> None:
    """Rows of 2, 4, 8 and 16 bytes: what is aligned gains nothing by padding, and pays copies."""
    gains = [
        replace(ODD, alignment=alignment).estimate_gain(USUAL_RATES) for alignment in (1, 2, 3, 4)
    ]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1
    assert gains[-1] < 0


def test_an_operand_whose_padding_is_free_pays_no_copy() -> None:
    """Each free operand raises the estimated gain."""
    free = [(False, False), (True, False), (True, True)]
    gains = [replace(ODD, is_free=each).estimate_gain(USUAL_RATES) for each in free]
    assert gains == sorted(gains)
    assert len(set(gains)) == len(gains)


def test_float32_without_tensor_cores_gains_nothing_from_alignment() -> None:
    """Its kernels load elements of four bytes at any address; tf32 has tensor cores."""
    whole = replace(ODD, item_bytes=4, alignment=2)
    assert whole.estimate_gain(USUAL_RATES) < 0
    assert replace(whole, is_tf32=True).estimate_gain(USUAL_RATES) > 0


def test_the_estimate_is_the_last_feature() -> None:
    """The second tree has all features before it, which no device changes."""
    sizes = pad_sizes_of("pad mm m=2048 n=2047 k=4095 bf16 a=row b=col")
    assert sizes is not None
    assert PAD_FEATURES[-1] == "estimated_gain"
    assert sizes.features(USUAL_RATES)[:-1] == sizes.values
    assert sizes.features(USUAL_RATES)[-1] == ODD.estimate_gain(USUAL_RATES)
