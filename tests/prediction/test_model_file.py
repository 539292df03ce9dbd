"""The device model's file: exact, small, fast to load, and refused where it must not be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.core.errors import DeviceModelError
from warmup.core.runtime import Device, Runtime
from warmup.prediction.device_model import DeviceModel, Predictor
from warmup.prediction.evaluation import Evaluation
from warmup.prediction.model_file import (
    MAX_BYTES,
    encode_device_model,
    read_device_model,
    write_device_model,
)

ROOT = Path(__file__).resolve().parents[2]
HERE = Runtime(
    device=Device(type="cuda", vendor="nvidia", name="stated", arch="sm_90", sm_count=132),
    torch="2.13.0",
    triton="3.8.0",
)
PREDICT = """
import sys
from warmup.prediction.model_file import read_device_model
from warmup.prediction.predictions import Predictions
model = read_device_model(sys.argv[1])
key = "mm m=640 n=1536 k=1536 bf16 a=row b=col out=bf16 | epilogue=none"
predictions = Predictions.of(model)
sizes = predictions._sizes(key)
print([time.hex() for time in predictions.predictor.times_us(sizes, model.covering)])
assert "torch" not in sys.modules, "torch was imported"
"""


@pytest.fixture(scope="module")
def model_file(evaluation: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the stated device's model."""
    path = tmp_path_factory.mktemp("model") / "stated.model.json"
    write_device_model(path, evaluation.model)
    return path


@pytest.fixture
def sparse(evaluation: Evaluation) -> DeviceModel:
    """The stated device's model, whose first problems lack the first, the last and all times."""
    model = evaluation.model
    first, second, third, *rest = model.measured
    nothing = (None,) * len(first.residuals)
    lacking = (
        replace(first, residuals=(None, *first.residuals[1:])),
        replace(second, residuals=(*second.residuals[:-1], None)),
        replace(third, residuals=nothing),
    )
    return replace(model, measured=(*lacking, *rest))


@pytest.fixture
def read_back(tmp_path: Path) -> Callable[[str], DeviceModel]:
    """``read_back(text)``: the device model of a file with *text*."""

    def read(text: str) -> DeviceModel:
        path = tmp_path / "again.json"
        path.write_text(text, encoding="utf-8")
        return read_device_model(path)

    return read


def test_a_model_is_read_as_it_was_written(evaluation: Evaluation, model_file: Path) -> None:
    """Every number survives, and the same model is the same text."""
    model = read_device_model(model_file, HERE)
    assert model == evaluation.model
    assert encode_device_model(model) == model_file.read_text(encoding="utf-8")


def test_what_was_not_measured_is_read_as_it_was_written(
    sparse: DeviceModel, read_back: Callable[[str], DeviceModel]
) -> None:
    """Of the residuals of a problem any may be missing."""
    assert read_back(encode_device_model(sparse)) == sparse


def test_a_file_of_an_earlier_warmup_is_read(
    sparse: DeviceModel, read_back: Callable[[str], DeviceModel]
) -> None:
    """Schema 1 has a null for each residual that was not measured, and no bits."""
    document = json.loads(encode_device_model(sparse))
    document["schema"] = 1
    document["gemm"]["measured"] = [
        [*one.sizes, one.category, *one.residuals] for one in sparse.measured
    ]
    assert read_back(json.dumps(document)) == sparse


def test_predictions_are_the_same_to_the_last_bit_in_every_process(
    model_file: Path, outputs_by_seed: Callable[[str, Path], set[str]]
) -> None:
    """Two fresh processes, with different hash seeds and without torch, predict the same."""
    assert len(outputs_by_seed(PREDICT, model_file)) == 1


def test_a_model_of_five_hundred_problems_fits_into_its_file(evaluation: Evaluation) -> None:
    """With sixteen configs it has at most 64 KiB."""
    model = evaluation.model
    one = replace(
        model.measured[0],
        sizes=(1, 12345, 12345, 12345),
        residuals=(*[-123] * (len(model.covering) + 2),),
    )
    wide = replace(model, measured=(one,) * 500)
    per_config = 500 * len(",-123") * (16 - len(model.covering))
    assert len(encode_device_model(wide)) + per_config <= MAX_BYTES


def test_a_model_that_is_too_large_is_not_written(evaluation: Evaluation) -> None:
    """More than 64 KiB is an error, and no file."""
    with pytest.raises(DeviceModelError, match="more than 65536"):
        encode_device_model(replace(evaluation.model, measured=evaluation.model.measured * 40))


Change = Callable[[dict[str, Any]], object]


def deep(depth: int) -> list[Any]:
    """Return a tree of so many forks in a row."""
    tree: list[Any] = [0, 1]
    for _ in range(depth):
        tree = [0, 1.0, tree, [0, 1]]
    return tree


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda d: d.pop("torch"), "missing: torch", id="cut"),
        pytest.param(lambda d: d.update(schema=3), "/schema", id="newer"),
        pytest.param(
            lambda d: d["gemm"].update(tree=[0, 1.0, [9999, 1], [0, 1]]),
            "/gemm/tree/2/0",
            id="tree",
        ),
        pytest.param(lambda d: d["gemm"]["measured"][0].pop(), "/gemm/measured/0", id="row"),
        pytest.param(
            lambda d: d["gemm"]["measured"][0].__setitem__(5, 2**40), "/gemm/measured/0/5", id="bit"
        ),
        pytest.param(
            lambda d: d["gemm"]["measured"][0].__setitem__(0, 0), "/gemm/measured/0/0", id="size"
        ),
        pytest.param(
            lambda d: d["gemm"]["measured"][0].__setitem__(4, 999),
            "/gemm/measured/0/4",
            id="category",
        ),
        pytest.param(
            lambda d: d["gemm"]["measured"][0].__setitem__(-1, 1001), "-1000 to 1000", id="residual"
        ),
        pytest.param(
            lambda d: d["gemm"]["measured"][0].__setitem__(-1, None), "/gemm/measured/0", id="null"
        ),
        pytest.param(
            lambda d: d["gemm"]["measured"][0].__setitem__(slice(5, None), []),
            "/gemm/measured/0: expected at least 6",
            id="short",
        ),
        pytest.param(
            lambda d: d["gemm"]["constants"][0].__setitem__(2, 0), "/gemm/constants/0/2", id="zero"
        ),
        pytest.param(
            lambda d: d["gemm"]["configs"][0].__setitem__(7, 0), "/gemm/configs/0/7", id="split"
        ),
        pytest.param(lambda d: d["gemm"].update(tree=deep(900)), "at most 64 leaves", id="deep"),
        pytest.param(lambda d: d["gemm"].update(problems=99), "trained on 99 problems", id="few"),
        pytest.param(lambda d: d["gemm"].update(models=["a", "b"]), "of 2 models", id="models"),
    ],
)
def test_a_damaged_model_is_refused_with_its_place(
    model_file: Path, tmp_path: Path, change: Change, reason: str
) -> None:
    """The error has the file and what is wrong, or that it was trained on too little."""
    document = json.loads(model_file.read_text(encoding="utf-8"))
    change(document)
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(DeviceModelError, match=reason) as raised:
        read_device_model(damaged)
    assert str(damaged) in str(raised.value)


def test_a_category_that_no_problem_has_is_unsure(evaluation: Evaluation) -> None:
    """As if it was not named."""
    model = evaluation.model
    (sizes,) = {one.sizes for one in evaluation.training.problems[:1]}
    other = replace(sizes, category=f"{sizes.category} scaled")
    named = replace(model, categories=(*model.categories, other.category))
    assert "no problem of the category" in str(Predictor(named).unsure(other))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    """No traceback from another module, whatever the file holds."""
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(DeviceModelError):
        read_device_model(path)


@pytest.mark.parametrize(
    ("here", "reason"),
    [
        (replace(HERE, device=replace(HERE.device, sm_count=78)), "another device"),
        (replace(HERE, device=replace(HERE.device, name="other")), "another device"),
        (replace(HERE, torch="2.14.0"), "another torch: 2.13, here 2.14"),
        (replace(HERE, triton="3.6.0"), "another triton"),
    ],
)
def test_a_model_of_another_machine_is_refused(
    model_file: Path, here: Runtime, reason: str
) -> None:
    """Device, torch minor and Triton minor must be those of the timings."""
    with pytest.raises(DeviceModelError, match=reason):
        read_device_model(model_file, here)


def test_a_model_of_few_problems_is_refused(measured_model: DeviceModel, tmp_path: Path) -> None:
    """Twelve measured problems of a single model are too few, and the text says how many."""
    path = tmp_path / "vit.model.json"
    write_device_model(path, measured_model)
    with pytest.raises(DeviceModelError, match="trained on 12 problems, fewer than 100"):
        read_device_model(path)


@pytest.fixture(scope="module")
def measured_model(measured: Any) -> DeviceModel:
    """The device model of the measured H100."""
    from warmup.prediction.fitting import fit

    return fit(measured)
