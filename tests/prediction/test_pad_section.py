"""The section `pad` of a model file: exact, small, and refused where it must not be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stated_pads import HERE, drawn_keys, lines_of

from warmup.core.errors import DeviceModelError
from warmup.prediction.device_model import DeviceModel
from warmup.prediction.evaluation import Evaluation
from warmup.prediction.model_file import (
    MAX_BYTES,
    encode_device_model,
    read_device_model,
    write_device_model,
)
from warmup.prediction.model_sections import with_pads, with_times
from warmup.prediction.pad.estimate import USUAL_RATES
from warmup.prediction.pad.pad_fitting import fit_pads
from warmup.prediction.pad.pad_model import MAX_PAD_LEAVES, PadAnswer, PadFork, PadLeaf, PadModel
from warmup.prediction.pad.samples import PadSamples, pad_samples, read_paddings

ROOT = Path(__file__).resolve().parents[2]
ASK = """
import sys
from warmup.prediction.model_file import read_device_model
from warmup.prediction.predictions import Predictions
predictions = Predictions.of(read_device_model(sys.argv[1], needs_times=False))
keys = [f"pad mm m={m} n=4096 k={k} bf16 a=row b=col" for m in (64, 8192) for k in (4095, 4096)]
print([predictions.predict_winner(key) for key in keys])
assert "torch" not in sys.modules, "torch was imported"
"""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> PadSamples:
    """Four hundred samples with stated times."""
    path = tmp_path_factory.mktemp("pads") / "pad.jsonl"
    path.write_text("\n".join(lines_of(drawn_keys(400))), encoding="utf-8")
    return pad_samples(read_paddings([path]))


@pytest.fixture(scope="module")
def pad(samples: PadSamples) -> PadModel:
    return fit_pads(samples.drawn, samples.method)


@pytest.fixture
def pads_alone(samples: PadSamples, pad: PadModel, tmp_path: Path) -> Path:
    """A model file that knows pad decisions alone."""
    path = tmp_path / "pads.model.json"
    write_device_model(path, DeviceModel.of_pads(samples.on, pad))
    return path


def test_both_sections_are_read_as_they_were_written(
    evaluation: Evaluation, pad: PadModel, tmp_path: Path
) -> None:
    """Every number survives, and the same model is the same text."""
    path, model = tmp_path / "both.model.json", replace(evaluation.model, pad=pad)
    write_device_model(path, model)
    found = read_device_model(path, HERE)
    assert found == model
    assert encode_device_model(found) == path.read_text(encoding="utf-8")


def test_a_file_without_the_section_is_as_before(evaluation: Evaluation, tmp_path: Path) -> None:
    """The schema is the same; the model decides about no padding."""
    path = tmp_path / "times.model.json"
    write_device_model(path, evaluation.model)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["schema"], "pad" in document) == (2, False)
    assert read_device_model(path, HERE).pad is None


def test_a_file_of_pads_alone_serves_and_does_not_search(pads_alone: Path) -> None:
    """A build that predicts times refuses it, and so does an older warmup: no problem of 100."""
    assert read_device_model(pads_alone, HERE, needs_times=False).pad is not None
    with pytest.raises(DeviceModelError, match="trained on 0 problems, fewer than 100"):
        read_device_model(pads_alone, HERE)


def test_answers_are_the_same_in_every_process_and_need_no_torch(
    pads_alone: Path, outputs_by_seed: Callable[[str, Path], set[str]]
) -> None:
    """Two fresh processes with different hash seeds."""
    outputs = outputs_by_seed(ASK, pads_alone)
    assert len(outputs) == 1
    assert "PredictedWinner" in outputs.pop()


def test_the_largest_tree_leaves_room_for_times(pad: PadModel, samples: PadSamples) -> None:
    """With the most leaves, and numbers of every digit, the section is a sixteenth of a file."""
    tree: PadFork | PadLeaf = PadLeaf(
        answer=PadAnswer.PADDED, grown=99999, confirmed=99999, gain=1.2345, bound=1.2345
    )
    leaf = tree
    for _ in range(MAX_PAD_LEAVES - 1):
        tree = PadFork(18, -12.3456, leaf, tree)
    text = encode_device_model(DeviceModel.of_pads(samples.on, replace(pad, tree=tree)))
    assert len(text) < MAX_BYTES / 8


Change = Callable[[dict[str, Any]], object]


def deep(depth: int) -> list[Any]:
    tree: list[Any] = ["as_is", 9, 9, 1.0, 1.0]
    for _ in range(depth):
        tree = ["m", 1.0, tree, ["unsure", 9, 9, 1.0, 1.0]]
    return tree


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda d: d["pad"].pop("tree"), "/pad: missing: tree", id="cut"),
        pytest.param(lambda d: d["pad"].update(extra=1), "/pad/extra", id="unknown"),
        pytest.param(
            lambda d: d["pad"].update(tree=["perhaps", 9, 9, 1.0, 1.0]), "/pad/tree/0", id="answer"
        ),
        pytest.param(
            lambda d: d["pad"].update(tree=["q", 1.0, *deep(1)[2:]]), "/pad/tree/0", id="feature"
        ),
        pytest.param(lambda d: d["pad"].update(tree=["as_is", 9]), "/pad/tree", id="leaf"),
        pytest.param(
            lambda d: d["pad"]["rates"].update(half=[1.0] * 4), "/pad/rates/half", id="rates"
        ),
        pytest.param(
            lambda d: d["pad"]["rates"].update(tf32=[0.0] * 5), "/pad/rates/tf32/0", id="rate"
        ),
        pytest.param(lambda d: d["pad"].update(tree=deep(64)), "at most 64 leaves", id="deep"),
        pytest.param(lambda d: d["pad"].update(tree=deep(300)), "at most 64 leaves", id="deeper"),
        pytest.param(
            lambda d: d["pad"]["categories"].update(x=[1, [1, 1], [2, 2, 2]]),
            "/pad/categories/x/1",
            id="sizes",
        ),
        pytest.param(lambda d: d["pad"].update(samples=199), "trained on 199 samples", id="few"),
    ],
)
def test_a_damaged_section_is_refused_with_its_place(
    pads_alone: Path, change: Change, reason: str
) -> None:
    """The error has the file and what is wrong, or that it was trained on too little."""
    document = json.loads(pads_alone.read_text(encoding="utf-8"))
    change(document)
    pads_alone.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(DeviceModelError, match=reason) as raised:
        read_device_model(pads_alone, needs_times=False)
    assert str(pads_alone) in str(raised.value)


def test_a_section_without_rates_has_the_usual_rates(pads_alone: Path, pad: PadModel) -> None:
    """So were all trees grown before rates were fitted; with rates they are read as written."""
    read = read_device_model(pads_alone, needs_times=False)
    assert read.pad is not None
    assert read.pad.rates == pad.rates != USUAL_RATES
    document = json.loads(pads_alone.read_bytes())
    del document["pad"]["rates"]
    pads_alone.write_text(json.dumps(document))
    read = read_device_model(pads_alone, needs_times=False)
    assert read.pad is not None
    assert read.pad.rates == USUAL_RATES


def test_a_section_of_another_machine_is_refused(pads_alone: Path) -> None:
    """Device and versions are those of the samples."""
    with pytest.raises(DeviceModelError, match=r"another torch: 2\.13, here 2\.14"):
        read_device_model(pads_alone, replace(HERE, torch="2.14.0"), needs_times=False)


def test_pads_are_added_to_the_times_of_a_file(
    evaluation: Evaluation, samples: PadSamples, pad: PadModel, tmp_path: Path
) -> None:
    """The file keeps its times; without a file the model has pads alone."""
    path = tmp_path / "x.model.json"
    assert with_pads(path, samples.on, pad) == DeviceModel.of_pads(samples.on, pad)
    write_device_model(path, evaluation.model)
    assert with_pads(path, samples.on, pad) == replace(evaluation.model, pad=pad)


def test_times_that_are_fitted_anew_keep_the_pads_of_a_file(
    evaluation: Evaluation, pads_alone: Path, pad: PadModel
) -> None:
    """Of the same device; of another device, or of a damaged file, nothing is kept."""
    model = evaluation.model
    assert with_times(pads_alone, model).pad == pad
    elsewhere = replace(model, on=replace(model.on, device="another"))
    assert with_times(pads_alone, elsewhere).pad is None
    pads_alone.write_text("{", encoding="utf-8")
    assert with_times(pads_alone, model).pad is None


def test_pads_of_another_machine_are_not_added(
    evaluation: Evaluation, samples: PadSamples, pad: PadModel, tmp_path: Path
) -> None:
    """The error says which file, and the file stays."""
    path = tmp_path / "x.model.json"
    write_device_model(path, evaluation.model)
    before = path.read_bytes()
    with pytest.raises(DeviceModelError, match=r"not written: .* another device"):
        with_pads(path, replace(samples.on, device="another"), pad)
    assert path.read_bytes() == before
