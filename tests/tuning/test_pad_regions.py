"""Pad decisions of a build: by the compiled region, both ways, and what is left of the loser."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_tables import make_row

from warmup.core.events import Emitter
from warmup.core.method import Method
from warmup.core.rows import Rejection, Scope, Tuned, bare_ranked, ranking_of
from warmup.core.trial import Fill, Outcome, Region, Samples, Step, TensorSpec
from warmup.keys.kind import ProblemOfKey
from warmup.keys.pad import AS_IS, PADDED
from warmup.keys.question import Question, RegionQuestion
from warmup.measuring.selection import make_variants_row
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss
from warmup.tuning.bucket_compiler import _with_finite_result
from warmup.tuning.trials import WaitingQuestion, variants_trial
from warmup.tuning.tuner import Tuner

pytestmark = pytest.mark.long

PROGRAM = str(Path(__file__).resolve().parents[1] / "programs/build_unaligned.py")
MODEL = """
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(63, 96, bias=False)

    def forward(self, hidden_states):
        return torch.relu(self.up(hidden_states * 0.5))
"""
KEY = "pad mm m=8 n=96 k=63 f32 a=row b=col free=a fp32=ieee"
GEMM = "packed_linear m=8 n=96 k=64 f32 a=row b=packed out=f32 fp32=ieee | epilogue=relu"
SPEC = TensorSpec((8, 8), (8, 1), 0, "float32")
REGION = Region((SPEC,), (), (), (1,))

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def built(run_once: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program printed: the first build, what was served, and a build once more."""
    model = tmp_path_factory.mktemp("unaligned") / "gate.py"
    model.write_text(MODEL)
    _, said = run_once("unaligned", PROGRAM, f"{model}:Gate", "gate.json", "padded")
    found: dict[str, Any] = json.loads(said)
    return found


def test_the_region_decides_and_not_inductors_own_calls(built: dict[str, Any]) -> None:
    """Both were compiled, called and checked; the row has the region's times and the others."""
    assert built["first"]["regions"] == ["as_is", "padded"]
    row = built["first"]["rows"][KEY]
    assert (row["winner"], row["scope"]) == ("padded", "fused")
    assert (row["time_us"], row["library_us"], row["bare_us"]) == (10.0, 20.0, 20.0)
    assert row["ranking"] == "10 padded; 20 as_is"
    assert row["bare_ranking"] == "10 as_is; 20 padded"


def test_a_decision_is_compiled_served_and_not_measured_again(built: dict[str, Any]) -> None:
    """It asks for the padded GEMM, which was tuned in the region; of the other no row is left."""
    first = built["first"]
    assert sorted(first["asked"]) == sorted(first["rows"]) == sorted([KEY, GEMM])
    assert sorted(first["tuned"]) == sorted([KEY, GEMM])
    assert (first["not_fused"], first["not_tuned"]) == ({}, {})
    # Strictly, with every row hit, and right.
    served = built["served"]
    assert (served["hits"], served["misses"], served["unused"]) == (sorted([KEY, GEMM]), {}, [])
    assert served["error"] < 1e-6
    # A later build of the bucket compiles it, and no region; nothing is tuned.
    assert (built["again"]["regions"], built["again"]["tuned"]) == ([], [])
    assert built["again"]["rows"] == built["first"]["rows"]


def test_operands_are_positive_where_the_result_would_not_be_finite() -> None:
    """The region of a GEMM on a logarithm has no finite result for normally distributed values."""
    for function, fill in (("log", Fill.POSITIVE), ("exp", Fill.NORMAL)):
        steps = (
            Step(f"aten.{function}.default", ({"input": 0},), {}),
            Step("aten.mm.default", ({"step": 0}, {"input": 1}), {}),
        )
        asked = question(Region((SPEC, SPEC), steps, (1,), (1,)))
        trial = variants_trial(asked, torch.device("cpu"), Method(), {}, seed=0)
        assert {spec.fill for spec in _with_finite_result(trial).operands} == {fill}, (
            function,
            fill,
        )


def test_a_quantized_output_of_a_pad_region_has_its_own_tolerance() -> None:
    """The result is as exact as the bf16 that it passed through, also where it is int8."""
    steps = (
        Step("aten.mm.default", ({"input": 0}, {"input": 1}), {}),
        *(
            Step("prims.convert_element_type.default", ({"step": i}, {"dtype": name}), {})
            for i, name in enumerate(("bfloat16", "int8"))
        ),
    )
    asked = question(Region((SPEC, SPEC), steps, (2,), (1,)))
    policy = {"f32": 1e-5, "bf16": 1e-2}
    trial = variants_trial(asked, torch.device("cpu"), Method(), policy, seed=0)
    assert trial.tolerance == 1e-5
    assert trial.tolerances["int8"] == trial.tolerances["bfloat16"] == 1e-2


def outcomes(as_is_us: float, padded_us: float) -> list[Outcome]:
    pairs = ((AS_IS, as_is_us), (PADDED, padded_us))
    return [Outcome(winner=way, samples=Samples((us,) * 12), error=0.0) for way, us in pairs]


def question(region: Region | None, reason: str = "") -> RegionQuestion:
    calls = {way: (lambda _number: None) for way in (AS_IS, PADDED)}
    return RegionQuestion(
        ProblemOfKey(KEY), (AS_IS, PADDED), region, frozenset({KEY}), reason, calls
    )


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Tuner:
    """A tuner on the CPU for which inductor's own calls take 10 us as it is and 20 us padded."""
    monkeypatch.setattr("warmup.tuning.tuner.time_calls", lambda *_: outcomes(10.0, 20.0))
    return Tuner(torch.device("cpu"), Method(), {})


def test_a_question_waits_once_for_its_region(tuner: Tuner) -> None:
    """Equal layers ask the same; a region's own questions are not kept, and calls are dropped."""
    tuner.region_questions.is_used = True
    for _ in range(2):
        assert tuner.measure(question(REGION)) is None
    with tuner.region_questions.measuring() as waiting:
        assert tuner.measure(question(REGION)) is None
        ((key, calls),) = [(one.question.key, one.question.calls) for one in waiting]
    assert (key, dict(calls), tuner.region_questions.waiting) == (KEY, {}, {})


@pytest.mark.parametrize(
    ("region", "is_used", "said"),
    [
        (None, True, "inductor's own calls decided: a range"),
        (REGION, False, "inductor's own calls decided: it was asked while serving"),
    ],
)
def test_without_a_region_or_a_second_compile_inductors_own_calls_decide(
    tuner: Tuner, region: Region | None, is_used: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, and the reason is kept with the row's key, and logged for a server."""
    tuner.region_questions.is_used = is_used
    caplog.set_level("INFO", "warmup")
    tuned = tuner.measure(question(region, "" if region else "a range"))
    assert tuned is not None
    assert (tuned.row.winner, tuned.row.evidence.scope) == (AS_IS, Scope.BARE)
    assert tuner.rows.not_fused[KEY].startswith(said)
    assert f"{KEY}: {tuner.rows.not_fused[KEY]}" in caplog.messages


@pytest.mark.parametrize("way", [AS_IS, PADDED])
def test_a_region_without_a_time_as_it_is_decides_nothing(tuner: Tuner, way: Any) -> None:
    """Then the times of inductor's own calls are the row, and why is kept; padded may fail."""
    waiting = WaitingQuestion(question(REGION), outcomes(10.0, 20.0), is_disturbed=False)
    timed = [
        one if one.winner != way else Outcome(winner=way, said="it failed")
        for one in outcomes(30.0, 40.0)
    ]
    tuned = tuner.rows.variants_row(waiting, timed, None, failure="", is_disturbed=False)
    assert tuned is not None
    is_own = way == AS_IS
    assert tuned.row.evidence.time_us == (10.0 if is_own else 30.0)
    assert tuner.rows.not_fused == (
        {KEY: "inductor's own calls decided: it failed"} if is_own else {}
    )


def test_a_failure_of_inductors_own_calls_rejects_nothing() -> None:
    """They are evidence only: the region decides, and no way of it counts as rejected."""
    failed = [
        Outcome(winner=way, rejection=Rejection.CRASHED, said="it failed")
        for way in (AS_IS, PADDED)
    ]
    tuned = make_variants_row(KEY, outcomes(20.0, 10.0), failed, AS_IS, Method())
    assert isinstance(tuned, Tuned)
    evidence = tuned.row.evidence
    assert (tuned.row.winner, evidence.scope, evidence.bare_us) == (PADDED, Scope.FUSED, None)
    assert (evidence.tried, evidence.rejected, bare_ranked(evidence)) == (2, (), ())
    assert ranking_of(tuned) == "10 padded; 20 as_is"


def test_padding_that_was_wrong_is_not_offered_again() -> None:
    """The question of a key whose padded row is not trusted has the unpadded way alone."""
    row = replace(make_row(), winner=PADDED, untrusted="the output was wrong")
    asked: list[RegionQuestion] = []

    class _Measurer:
        def measure(self, question: Question) -> None:
            assert isinstance(question, RegionQuestion)
            asked.append(question)

        def close(self) -> None:
            pass

    lookup = Lookup({KEY: row}, OnMiss.FALLBACK, Emitter([]), tuner=_Measurer())
    assert lookup.measure(question(REGION)) is None
    assert [(one.variants, list(one.calls)) for one in asked] == [((AS_IS,), [AS_IS])]
