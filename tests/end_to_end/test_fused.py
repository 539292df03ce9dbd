"""Products measured with what follows them: a build, its child program, a CPU; real compiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_processes import PROGRAMS, answer_of, python_in

pytestmark = pytest.mark.long

MODEL = """
import torch
from torch import nn


class Summed(nn.Module):
    def forward(self, a, b, r):
        y = torch.relu(a @ b) + r
        return y, y.amax(-1)


class Plain(nn.Module):
    def forward(self, a, b, r):
        return a @ b


def example_inputs(seqlen):
    return torch.randn(seqlen, 128), torch.randn(128, 64), torch.randn(seqlen, 64)
"""
SUMMED = "mm m=16 n=64 k=128 f32 a=row b=row out=f32 fp32=ieee | epilogue=relu,add(f32[16,64])"
PLAIN = "mm m=16 n=64 k=128 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"

Build = Callable[..., dict[str, Any]]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """``build("Summed")``: the rows that a build makes of it, offered a slow call as well."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")

    def run(name: str, **variables: str) -> dict[str, Any]:
        words = (f"{tmp_path / 'model.py'}:{name}", "16", "table.json")
        done = python_in(tmp_path, str(PROGRAMS / "two_candidates.py"), *words, **variables)
        found: dict[str, Any] = answer_of(done.stdout)
        return found

    return run


def test_a_product_is_measured_with_what_follows_it(build: Build) -> None:
    """Compiled with each candidate, in the child, the library's kernel first; its own row says so.

    The other candidate takes ten times as long alone as all of the region, so it is left out.
    """
    found = build("Summed")
    row = found["rows"][SUMMED]
    assert found["not_fused"] == {}
    assert (row["winner"], row["scope"]) == ("aten::mm", "fused")
    assert row["fused"][0] == "aten::mm"
    assert row["bare_us"] > 0


def test_a_product_of_a_range_is_measured_with_what_follows_it(build: Build) -> None:
    """At the bucket's size, also where no candidate is within the bound along the range."""
    found = build("Summed", RANGE="1")
    (row,) = (row for key, row in found["rows"].items() if " m=2..16 " in key)
    assert found["not_fused"] == {}
    assert (row["winner"], row["scope"]) == ("aten::mm", "fused")
    assert row["fused"][0] == "aten::mm"
    assert [size for size, _ in row["along"]] == [2, 9, 16]


def test_a_product_that_nothing_follows_is_measured_alone(build: Build) -> None:
    row = build("Plain")["rows"][PLAIN]
    assert (row["scope"], row["fused"], row["bare_us"]) == ("bare", [], None)
