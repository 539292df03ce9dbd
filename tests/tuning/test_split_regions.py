"""Split reductions of a build: every number of parts is compiled as its region, and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from warmup.core.method import Method
from warmup.core.trial import Region
from warmup.keys.kind import ProblemOfKey
from warmup.keys.question import RegionQuestion
from warmup.keys.reduction import split_into
from warmup.tuning.tuner import Tuner

pytestmark = pytest.mark.long

PROGRAM = str(Path(__file__).resolve().parents[1] / "programs/build_split.py")
MODEL = """
import torch
from torch import nn


class Norm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def example_inputs(seqlen):
    return (torch.randn(seqlen, 4096),)
"""
KEY = "split sum x=8 r=4096 f32 out=f32 reads=f32 hint=inner rule=4 input=again"

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def built(run_once: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program printed: the first build, what was served, and a build once more."""
    model = tmp_path_factory.mktemp("split") / "norm.py"
    model.write_text(MODEL)
    _, said = run_once("split", PROGRAM, f"{model}:Norm", "norm.json", "2")
    found: dict[str, Any] = json.loads(said)
    return found


def test_the_fastest_of_all_numbers_of_parts_is_the_row(built: dict[str, Any]) -> None:
    """Each was run against a reference in higher precision, and none is wrong."""
    assert [one["way"] for one in built["ways"]] == [
        f"split(parts={parts})" for parts in (4, 1, 2, 8)
    ]
    assert all(one["rejection"] is None and one["error"] < 1e-5 for one in built["ways"])
    # The rule's number is the control; the bucket asks for the row when it is compiled again.
    row = {"winner": "split(parts=2)", "scope": "fused", "tried": 4, "library_us": 20.0}
    assert built["first"]["rows"] == {KEY: row}
    assert built["first"]["asked"] == built["first"]["tuned"] == [KEY]
    assert built["first"]["not_tuned"] == {}


def test_a_row_is_served_and_not_measured_again(built: dict[str, Any]) -> None:
    """Strictly: inductor makes two parts, and the output is right."""
    assert (built["served"]["hits"], built["served"]["parts"]) == ([KEY], [2])
    assert built["served"]["error"] < 1e-6
    # A later build compiles the bucket, and no region; nothing is tuned.
    assert (built["again"]["ways"], built["again"]["tuned"]) == ([], [])
    assert built["again"]["rows"] == built["first"]["rows"]


def test_a_server_that_tunes_leaves_the_rule() -> None:
    """It compiles a model once and cannot compile it again: there is no row, and a reason."""
    tuner = Tuner(torch.device("cpu"), Method(), {})
    asked = RegionQuestion(
        ProblemOfKey(KEY), (split_into(4), split_into(1)), Region((), (), (), ())
    )
    assert tuner.measure(asked) is None
    assert tuner.rows.not_tuned == {KEY: "it was asked while serving, which compiles a model once"}
    assert tuner.rows.library_rows[KEY].winner == split_into(4)
