"""Predictions: which candidates a search measures, which miss is answered, and where unsure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from warmup.core.rows import Family, Winner
from warmup.prediction.device_model import Predictor
from warmup.prediction.evaluation import Evaluation
from warmup.prediction.features import GemmSizes, config_of, library_among
from warmup.prediction.predictions import Predictions
from warmup.prediction.tree import Fork, Leaf, LeafEvidence, Tree

INSIDE = "mm m=640 n=1536 k=1536 bf16 a=row b=col out=bf16 | epilogue=none"


@pytest.fixture(scope="module")
def predictions(evaluation: Evaluation) -> Predictions:
    """Those of the stated device."""
    return Predictions.of(evaluation.model, 2)


def candidate(m: int, n: int, k: int, uid: str = "triton::mm") -> Winner:
    kwargs = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}
    kwargs |= {"num_stages": 4, "num_warps": 4}
    return Winner(Family.TEMPLATE, uid, tuple(sorted(kwargs.items())))


def with_bound(tree: Tree, bound: float) -> Tree:
    """Return *tree* whose leaves multiply a predicted gain with *bound*."""
    if isinstance(tree, Fork):
        return replace(tree, low=with_bound(tree.low, bound), high=with_bound(tree.high, bound))
    return Leaf(tree.config, tree.problems, LeafEvidence(9, 1.0, 1.0, bound))


def test_the_promising_candidates_are_the_fastest_predicted(predictions: Predictions) -> None:
    """Two of three: a tile of 16 rows is the slowest for 640 rows."""
    tiles = [candidate(16, 64, 32), candidate(128, 128, 64), candidate(64, 128, 64)]
    assert set(predictions.promising(INSIDE, tiles) or ()) == set(tiles[1:])


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(INSIDE.replace("m=640", "m=9000"), id="rows"),
        pytest.param(INSIDE.replace("k=1536", "k=64"), id="k"),
        pytest.param(INSIDE.replace("b=col", "b=row"), id="layout"),
        pytest.param(INSIDE.replace("bf16", "f16"), id="dtype"),
        pytest.param(INSIDE.replace("n=1536", "n=1537").replace("b=col", "b=row"), id="aligned"),
        pytest.param("int_mm m=640 n=1536 k=1536 i8 a=row b=col out=i32 | epilogue=none", id="op"),
    ],
)
def test_nothing_is_predicted_outside_of_what_was_measured(
    predictions: Predictions, key: str
) -> None:
    """A search is not narrowed, and a miss not answered."""
    assert predictions.promising(key, [candidate(64, 128, 64)]) is None
    assert predictions.predict(key) is None


def test_a_template_that_was_not_measured_leaves_the_search_as_it_is(
    predictions: Predictions,
) -> None:
    """A candidate whose time cannot be predicted must not be left out."""
    tiles = [candidate(64, 128, 64), candidate(64, 128, 64, "triton::other")]
    assert predictions.promising(INSIDE, tiles) is None


def test_a_miss_is_answered_where_the_bound_beats_the_library(evaluation: Evaluation) -> None:
    """The same prediction is an answer with a bound above 1, and none with a bound below."""
    model = evaluation.model
    sure = replace(model, tree=with_bound(model.tree, 100.0))
    unsure = replace(model, tree=with_bound(model.tree, 0.01))
    answer = Predictions.of(sure).predict(INSIDE)
    assert answer is not None
    assert answer.bound == pytest.approx(100 * answer.gain, rel=1e-3)
    assert answer.source_hash == "abc"
    assert Predictions.of(unsure).predict(INSIDE) is None


def test_a_config_that_was_not_measured_nearby_is_not_chosen(
    evaluation: Evaluation, sized: Callable[[int, int, int], GemmSizes]
) -> None:
    """With no residual of the fastest config anywhere, the next fastest is the choice."""
    model, sizes = evaluation.model, sized(640, 1536, 1536)
    fastest = Predictor(model).choose(sizes)
    assert fastest is not None
    column = 1 + model.covering.index(fastest.config)  # the library has the first
    measured = tuple(
        replace(one, residuals=(*one.residuals[:column], None, *one.residuals[column + 1 :]))
        for one in model.measured
    )
    other = Predictor(replace(model, measured=measured)).choose(sizes)
    assert other is not None
    assert other.config != fastest.config


@pytest.mark.parametrize("change", [("none", "relu"), ("m=640", "m=17..640")])
def test_a_miss_with_an_epilogue_or_a_range_is_not_answered(
    evaluation: Evaluation, change: tuple[str, str]
) -> None:
    """Times were measured without epilogues, at constant sizes."""
    model = evaluation.model
    sure = Predictions.of(replace(model, tree=with_bound(model.tree, 100.0)))
    assert sure.predict(INSIDE.replace(*change)) is None


def test_the_reason_of_unsure_names_what_is_outside(
    evaluation: Evaluation, sized: Callable[[int, int, int], GemmSizes]
) -> None:
    """The text says which size, or that no problem of the category was measured."""
    predictor = Predictor(evaluation.model)
    assert predictor.unsure(sized(640, 1536, 1536)) is None
    assert "m is outside" in str(predictor.unsure(sized(9000, 1536, 1536)))
    other = replace(sized(640, 1536, 1536), category="mm f64")
    assert "no problem of the category mm f64" in str(predictor.unsure(other))


def test_the_library_is_that_of_default_mode() -> None:
    """`bias_addmm` before `addmm`; other library kernels are no candidates of a fit."""
    bias, plain = (Winner(Family.EXTERN, f"aten::{name}") for name in ("bias_addmm", "addmm"))
    assert library_among("addmm", [plain, bias]) == bias
    assert library_among("addmm", [plain]) == plain
    assert config_of(plain, bias) is None
