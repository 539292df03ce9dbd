"""Products measured with what follows them: a build, its child program, a CPU; real compiles."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_forked

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
MODEL = """
import torch
from torch import nn


class Summed(nn.Module):
    def forward(self, a, b, r):
        y = torch.relu(a @ b) + r
        return y, y.amax(-1)


class Long(nn.Module):
    def forward(self, a, b, r):
        y = a @ b
        for _ in range(12):
            y = torch.erf(torch.sin(y)) + r
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
    """``build("Summed", 4)``: the rows that a build makes of it, offered a slow call as well."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")

    def run(name: str, top_k: int, **environment: str) -> dict[str, Any]:
        target = [f"{tmp_path / 'model.py'}:{name}", "16", str(tmp_path / "table.json")]
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
        done = run_forked(
            *(str(PROGRAMS / "two_candidates.py"), *target, str(top_k)),
            env={**os.environ, "PYTHONPATH": str(ROOT), **caches, **environment},
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


def test_a_product_is_measured_with_what_follows_it(build: Build) -> None:
    """Compiled with each candidate, in the child, the library's kernel first; its own row says so.

    The other candidate takes ten times as long alone as all of the region, so it is left out.
    """
    found = build("Summed", 4)
    row = found["rows"][SUMMED]
    assert found["not_fused"] == {}
    assert (row["winner"], row["scope"]) == ("aten::mm", "fused")
    assert row["fused"][0] == "aten::mm"
    assert row["bare_us"] > 0


def test_several_are_compiled_at_once(build: Build) -> None:
    """Challengers whose kernels went to the workers together are each compiled, and timed."""
    found = build("Long", 4, TWINS="1")
    assert found["not_fused"] == {}
    (row,) = found["rows"].values()
    assert set(row["fused"]) == {"aten::mm", "aten::one_mm", "aten::other_mm"}


def test_a_product_of_a_range_is_measured_with_what_follows_it(build: Build) -> None:
    """At the bucket's size; along the range it is timed alone."""
    found = build("Summed", 4, RANGE="1")
    ranged = {key: row for key, row in found["rows"].items() if " m=2..16 " in key}
    (row,) = ranged.values()
    assert found["not_fused"] == {}
    assert (row["winner"], row["scope"]) == ("aten::mm", "fused")
    assert row["fused"][0] == "aten::mm"
    assert [size for size, _ in row["along"]] == [2, 9, 16]


def test_a_range_without_a_candidate_within_the_bound_is_measured_with_what_follows(
    build: Build,
) -> None:
    """The winner along the range is still compiled with it, fused and not, and gets such a row."""
    found = build("Summed", 4, RANGE="1", STRICT="1")
    (row,) = (row for key, row in found["rows"].items() if " m=2..16 " in key)
    assert found["not_fused"] == {}
    assert (row["winner"], row["scope"]) == ("aten::mm", "fused")
    assert row["fused"][0] == "aten::mm"


def test_nothing_to_fuse_is_measured_alone(build: Build) -> None:
    """Where no kernel could take anything in, there is nothing to compile."""
    row = build("Plain", 4)["rows"][PLAIN]
    assert (row["scope"], row["fused"], row["bare_us"]) == ("bare", [], None)


def test_top_k_zero_measures_products_alone(build: Build) -> None:
    """``--set fused_top_k=0`` is the build without regions."""
    row = build("Summed", 0)["rows"][SUMMED]
    assert (row["scope"], row["fused"], row["bare_us"]) == ("bare", [], None)
