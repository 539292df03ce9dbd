"""The device models that ship: what they were made from, for which device, and who uses them."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from warmup.bench.prediction.record import record_of
from warmup.core.runtime import Runtime, slug_of
from warmup.prediction.device_model import Predictor
from warmup.prediction.evaluation import judge_unseen
from warmup.prediction.features import LIBRARY_CONFIG, kin_of
from warmup.prediction.model_file import MAX_BYTES, encode_device_model, read_device_model
from warmup.prediction.shipped_model import shipped_model
from warmup.prediction.timing_lines import read_timings
from warmup.prediction.training import TrainingSet, training_set
from warmup.serving.install_settings import InstallSettings
from warmup.serving.predictor import with_device_model

ROOT = Path(__file__).resolve().parents[2]
MODELS = sorted((ROOT / "warmup/prediction/models").glob("*.json"))
TIMINGS = ROOT / "docs/benchmarks/results/timings"
H100 = "NVIDIA H100 80GB HBM3"
LOAD = """
import sys
from warmup.prediction.model_file import read_device_model
print(read_device_model(sys.argv[1]).problems, "torch" in sys.modules)
"""


# Timings that are no builds of the zoo's models.
EXAMPLES = "examples-"
OTHERS = ("predicted", "few-rows", "exhaustive", "pads", "drawn", EXAMPLES)


@pytest.fixture(scope="module", params=[("h100-predicted", "h100-few-rows"), ("h200-predicted",)])
def trained(request: pytest.FixtureRequest) -> TrainingSet:
    """What the model of each device was fitted to."""
    return training_set(read_timings([TIMINGS / f"{name}.jsonl.gz" for name in request.param]))


@pytest.fixture(scope="module")
def measured() -> TrainingSet:
    """The list of models' GEMMs that the model of the H100 was fitted to."""
    return training_set(read_timings([TIMINGS / "h100-predicted.jsonl.gz"]))


@pytest.fixture
def settings() -> Callable[..., InstallSettings]:
    """Settings with *changes*, and everything else empty."""

    def make(**changes: Any) -> InstallSettings:
        empty: dict[str, Any] = {field.name: "" for field in fields(InstallSettings)}
        return InstallSettings(**(empty | changes))

    return make


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_shipped_model_is_whole_and_small(path: Path) -> None:
    """It reads back to its bytes, has its device's name, and was trained on enough."""
    model = read_device_model(path)
    text = path.read_text(encoding="utf-8")
    assert encode_device_model(model) == text
    assert len(text) <= MAX_BYTES
    assert path.name == f"{slug_of(model.on.device)}.model.json"
    assert model.too_little is None


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_shipped_model_needs_no_torch(path: Path) -> None:
    """A process that reads it has not imported torch."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[1] == "False"


def test_a_shipped_model_is_of_the_shipped_times(trained: TrainingSet) -> None:
    """It has the problems and the models of the timings, and nearly their library times."""
    model = read_device_model(
        ROOT / "warmup/prediction/models" / f"{slug_of(trained.on.device)}.model.json"
    )
    assert (model.problems, model.models) == (len(trained.problems), trained.models)
    predictor, errors = Predictor(model), []
    for one in trained.problems:
        (us,) = predictor.times_us(one.sizes, [LIBRARY_CONFIG])
        assert us is not None
        errors.append(abs(math.log(us / one.library_us)))
    assert statistics.median(errors) < 0.1


@pytest.mark.parametrize(
    ("report", "device"),
    [
        ("judged-h100", H100),
        ("judged-h200", "NVIDIA H200"),
        ("judged-examples-h100", H100),  # launched one by one, as what the model was fitted to
    ],
)
def test_the_shipped_model_was_judged_by_later_builds(report: str, device: str) -> None:
    """The committed judgement is of the shipped model, by all builds of the zoo or examples."""
    gpu, is_of_examples = report.rpartition("-")[2], "examples" in report
    builds = [
        path
        for path in TIMINGS.glob(f"{gpu}-*.jsonl.gz")
        if path.name.removeprefix(f"{gpu}-").startswith(EXAMPLES if is_of_examples else OTHERS)
        == is_of_examples
    ]
    model = read_device_model(ROOT / "warmup/prediction/models" / f"{slug_of(device)}.model.json")
    record = record_of(judge_unseen(model, training_set(read_timings(sorted(builds)))))
    committed = json.loads((TIMINGS.parent / f"{report}.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(record)) == committed


def test_predictions_without_a_named_model_use_the_one_that_ships(
    settings: Callable[..., InstallSettings], make_runtime: Callable[..., Runtime]
) -> None:
    """On the device of a shipped model it is taken; on another, and at other misses, none is."""
    here, other = make_runtime(name=H100), make_runtime(name="NVIDIA Other")
    taken = with_device_model(settings(on_miss="predict"), here).device_model
    assert taken == str(shipped_model(here))
    assert with_device_model(settings(on_miss="predict"), other).device_model == ""
    assert with_device_model(settings(on_miss="fallback"), here).device_model == ""


def test_a_named_model_is_used_rather_than_the_one_that_ships(
    settings: Callable[..., InstallSettings], make_runtime: Callable[..., Runtime]
) -> None:
    """What the user names stays."""
    asked = settings(on_miss="predict", device_model="own.json")
    assert with_device_model(asked, make_runtime(name=H100)).device_model == "own.json"


def test_an_unaligned_result_is_a_category_of_its_own(measured: TrainingSet) -> None:
    """50257 columns of bf16 are: their rows start at odd addresses, though both factors do not."""
    categories = {one.sizes.category for one in measured.problems}
    (found,) = {one.sizes.category for one in measured.problems if one.sizes.n == 50257}
    plain, _, word = found.rpartition(" ")
    assert word == "out-unaligned"
    assert plain in categories


def test_problems_of_another_alignment_are_no_kin() -> None:
    """Another op, dtype of the same rate or layout is kin; another alignment is not."""
    plain = "bf16 mm bf16 row col bf16"
    assert kin_of("bf16 addmm f16 row row f16 1d") == kin_of(plain)
    assert kin_of("f32 mm f32 row col f32") != kin_of(plain)
    others = {kin_of(f"{plain} {word}") for word in ("unaligned", "out-unaligned")}
    assert len(others | {kin_of(plain)}) == 3
