"""What answers misses with `on_miss="predict"`: a device model of pad decisions, or nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from stated_pads import HERE

from warmup.core.errors import DeviceModelWarning
from warmup.core.events import Emitter, Event, EventName
from warmup.core.miss_reasons import MissReason
from warmup.core.runtime import Runtime
from warmup.prediction.device_model import DeviceModel
from warmup.prediction.model_file import write_device_model
from warmup.prediction.pad.pad_model import PadAnswer, PadCategory, PadLeaf, PadModel
from warmup.prediction.timing_lines import MeasuredOn
from warmup.serving.install_settings import InstallSettings
from warmup.serving.predictor import predictor_at_misses
from warmup.table.imported_answers import ImportedAnswers
from warmup.table.lookup import Lookup, OnMiss

KEY = "pad mm m=4 n=9 k=9 bf16 a=row b=col"
GEMM = "mm m=4 n=9 k=9 bf16 a=row b=col out=bf16 | epilogue=none"


@pytest.fixture
def pads_file(tmp_path: Path) -> Path:
    """The file of a model that pads every ``mm`` in bf16, and predicts no time."""
    pad = PadModel(
        method="eager cold",
        samples=200,
        categories={"mm bf16": PadCategory(200, (1, 1, 1), (9999, 9999, 9999))},
        tree=PadLeaf(answer=PadAnswer.PADDED, grown=8, confirmed=4, gain=1.5, bound=1.25),
    )
    path = tmp_path / "x.model.json"
    write_device_model(path, DeviceModel.of_pads(MeasuredOn.of(HERE), pad))
    return path


def settings(path: Path, on_miss: OnMiss = OnMiss.PREDICT) -> InstallSettings:
    return InstallSettings(
        digest="0" * 64,
        on_miss=on_miss.value,
        uncovered="count",
        device="cuda",
        audit_log="",
        bundle="",
        pads_model=False,
        device_model=str(path),
    )


def lookup_with(path: Path, on_miss: OnMiss, events: list[Event], here: Runtime = HERE) -> Lookup:
    predictor, _ = predictor_at_misses(settings(path, on_miss), ImportedAnswers(), here)
    return Lookup({}, on_miss, Emitter([events.append]), predictor=predictor)


def test_a_model_of_pads_alone_answers_pad_misses(pads_file: Path) -> None:
    """The event is a prediction with gain and bound, and no time; a GEMM is not predicted."""
    events: list[Event] = []
    lookup = lookup_with(pads_file, OnMiss.PREDICT, events)
    found = lookup.predict_winner(KEY, MissReason.NOT_IN_TABLE)
    assert found is not None
    lookup.predicted(KEY, found.winner, found)
    (event,) = events
    assert (event.name, event.fields["kind"], event.fields["choice"]) == (
        EventName.PREDICTED,
        "pad",
        "padded",
    )
    assert (event.fields["gain"], event.fields["bound"]) == (1.5, 1.25)
    assert event.fields["predicted_us"] is event.fields["library_us"] is None
    assert lookup.predict(GEMM, MissReason.NOT_IN_TABLE) is None


@pytest.mark.parametrize(
    ("on_miss", "reason"),
    [
        (OnMiss.STRICT, MissReason.NOT_IN_TABLE),
        (OnMiss.FALLBACK, MissReason.NOT_IN_TABLE),
        (OnMiss.PREDICT, MissReason.WRONG_DEVICE),
        (OnMiss.PREDICT, MissReason.UNTRUSTED),
    ],
)
def test_a_pad_miss_is_not_predicted_unless_asked_for(
    pads_file: Path, on_miss: OnMiss, reason: MissReason
) -> None:
    """Neither in strict serving, nor where a row cannot be used."""
    assert lookup_with(pads_file, on_miss, []).predict_winner(KEY, reason) is None


@pytest.mark.parametrize("damage", ["another torch", "cut", "few"])
def test_a_file_that_cannot_be_used_is_refused_and_serving_goes_on(
    pads_file: Path, damage: str
) -> None:
    """One warning with the reason; then a pad miss gets what default mode does without a model."""
    here = replace(HERE, torch="2.14.0") if damage == "another torch" else HERE
    document = json.loads(pads_file.read_text(encoding="utf-8"))
    if damage == "few":
        document["pad"]["samples"] = 12
    text = json.dumps(document)
    pads_file.write_text(text[:-9] if damage == "cut" else text, encoding="utf-8")
    with pytest.warns(DeviceModelWarning, match=r"x\.model\.json.*misses get the library's kernel"):
        lookup = lookup_with(pads_file, OnMiss.PREDICT, [], here)
    assert lookup.predict_winner(KEY, MissReason.NOT_IN_TABLE) is None
