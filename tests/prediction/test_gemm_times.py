"""Times of a GEMM with the winner of another size: measured, predicted, or not known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from warmup.core.errors import SettingsError
from warmup.core.rows import Evidence, Family, Flag, Row, Winner
from warmup.core.runtime import Runtime
from warmup.diagnostics.recompiles.known_times import known_times
from warmup.prediction.device_model import Predictor
from warmup.prediction.evaluation import Evaluation
from warmup.prediction.gemm_times import GemmTimes, SampledKeys
from warmup.prediction.model_file import write_device_model


def key(m: int, k: int = 1536) -> str:
    return f"mm m={m} n=1536 k={k} bf16 a=row b=col out=bf16 | epilogue=none"


def tile(rows: int) -> Winner:
    sizes = {"BLOCK_M": rows, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8}
    kwargs = tuple(sorted((sizes | {"num_stages": 4, "num_warps": 4}).items()))
    return Winner(Family.TEMPLATE, "triton::mm", kwargs)


def row(winner: Winner, time_us: float, *, ranking: str = "", **times: float | str) -> Row:
    evidence = Evidence(
        time_us=time_us,
        library_us=None,
        runner_up=None,
        runner_up_us=None,
        tried=9,
        ranking=ranking,
    )
    return Row(winner, replace(evidence, **times))  # type: ignore[arg-type]


SMALL, LARGE, LIBRARY = tile(16), tile(128), Winner(Family.EXTERN, "aten::mm")


@pytest.mark.parametrize(
    ("first", "own", "times"),
    [
        pytest.param(LARGE, row(LARGE, 20.0), (20.0, 20.0), id="same-winner"),
        pytest.param(
            SMALL, row(LARGE, 20.0, ranking=f"20 {LARGE.short}; 25 {SMALL.short}"), (20.0, 25.0),
            id="ranking",
        ),
        pytest.param(
            SMALL, row(LARGE, 20.0, runner_up=str(SMALL), runner_up_us=22.0), (20.0, 22.0),
            id="runner-up",
        ),
        pytest.param(LIBRARY, row(LARGE, 20.0, library_us=30.0), (20.0, 30.0), id="library"),
        pytest.param(SMALL, row(LARGE, 20.0, library_us=30.0), None, id="not-timed"),
        pytest.param(
            SMALL, row(LARGE, 20.0, ranking=f"25 {SMALL.short}; 26 {SMALL.short}"), None,
            id="two-candidates-of-one-name",
        ),
    ],
)  # fmt: skip
def test_a_measured_time_is_that_of_the_row(
    first: Winner, own: Row, times: tuple[float, float] | None
) -> None:
    """The row of the size says what the first size's winner took there, or nothing is known."""
    known = GemmTimes({key(16): row(first, 5.0), key(640): own}, None)
    assert known.measured(key(16), key(640)) == times


def test_a_predicted_time_is_that_of_the_first_winner(evaluation: Evaluation) -> None:
    """Without a row for 640 the device model says that a tile of 16 rows is slower there."""
    known = GemmTimes({key(16): row(SMALL, 5.0)}, Predictor(evaluation.model))
    predicted = known.predicted(key(16), key(640))
    assert predicted is not None
    assert predicted[1] > 1.2 * predicted[0]


def test_the_library_with_a_bias_has_a_predicted_time(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Default mode's kernel for addmm is aten::bias_addmm, which is the library of a model."""
    monkeypatch.setattr(Predictor, "unsure", lambda *_: None)
    first, other = (
        key(m).replace("mm m", "addmm m").replace("b=col", "b=col bias=1d") for m in (16, 640)
    )
    rows = {first: row(Winner(Family.EXTERN, "aten::bias_addmm"), 5.0)}
    assert GemmTimes(rows, Predictor(evaluation.model)).predicted(first, other) is not None


def test_nothing_is_predicted_outside_of_what_was_measured(evaluation: Evaluation) -> None:
    """A size beyond the measured sizes has no predicted time."""
    known = GemmTimes({key(16): row(SMALL, 5.0)}, Predictor(evaluation.model))
    assert known.predicted(key(16), key(90000)) is None


def test_the_device_model_of_an_h100_does_not_price_an_h200(
    evaluation: Evaluation, make_runtime: Callable[..., Runtime], tmp_path: Path
) -> None:
    """Both have the same architecture and number of multiprocessors: the name tells them apart."""
    h100, path = "NVIDIA H100 80GB HBM3", tmp_path / "h100.json"
    on = replace(evaluation.model.on, device=h100)
    write_device_model(path, replace(evaluation.model, on=on))
    assert known_times(None, path, make_runtime(name=h100)) is not None
    with pytest.raises(SettingsError, match=f"{h100}, here NVIDIA H200"):
        known_times(None, path, make_runtime())


def test_a_key_at_another_size_grows_evenly() -> None:
    """Numbers that differ between two sizes grow with the size; where they cannot, no key."""
    keys = SampledKeys((560, 2048), ((key(560), key(1280, 1)), (key(2048), key(1280, 2))))
    assert keys.at(1024) == (key(1024), None)
    assert keys.at(2048) == (key(2048), key(1280, 2))


def test_sizes_with_other_gemms_have_no_keys() -> None:
    """Where the model has other GEMMs at another size, none can be paired."""
    assert SampledKeys((16, 64), ((key(16),), (key(64), key(64)))).at(32) == ()


def test_a_row_without_a_stable_time_says_nothing(make_row: Callable[..., Row]) -> None:
    """An unstable row has no time to compare with."""
    unstable = make_row()
    evidence = replace(unstable.evidence, flags=(Flag.UNSTABLE,))
    rows = {key(16): unstable, key(640): replace(unstable, evidence=evidence)}
    assert GemmTimes(rows, None).measured(key(16), key(640)) is None
