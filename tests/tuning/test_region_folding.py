"""Regions of an mm whose sum stayed an epilogue: torch would fold the sum into an addmm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._inductor.kernel import mm
from torch.fx.experimental.proxy_tensor import make_fx

from warmup.core.method import Method
from warmup.core.rows import Family, Winner
from warmup.core.trial import Candidate
from warmup.inductor.gemm.regions import region_of
from warmup.keys.gemm import GemmProblem
from warmup.keys.question import GemmQuestion
from warmup.table.schema import TOLERANCE
from warmup.tuning.trials import region_trial
from warmup.tuning.worker import RegionCompiler, RegionSets

CPU = torch.device("cpu")
KEY = "mm m=2 n=48 k=32 f32 a=row b=col out=f32 fp32=ieee | epilogue=add(f32[2,48])"
OPTIONS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,CPP"}
LIBRARY = Winner(Family.EXTERN, "aten::mm")


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor has a choice for weights that are inputs too, as on a GPU."""
    original = mm.use_cpp_gemm_template

    def use(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "require_constant_mat2": False})

    monkeypatch.setattr(mm, "use_cpp_gemm_template", use)


def test_a_region_of_an_mm_asks_for_the_mm() -> None:
    """The compiled region has the library's mm for the key, and computes the sum."""
    factors = torch.randn(2, 32), torch.randn(48, 32), torch.randn(2, 48)
    graph = make_fx(lambda x, w, y: torch.mm(x, w.t()) + y, tracing_mode="fake")(*factors)
    gemm = next(node for node in graph.graph.nodes if node.target is torch.ops.aten.mm.default)
    region = region_of(gemm, (), has_epilogue=True)
    assert region is not None
    question = GemmQuestion(GemmProblem.of_key(KEY), "cpu", (), library=LIBRARY)
    trial = region_trial(question, region, Method(), TOLERANCE, seed=0)
    trial = replace(trial, device="cpu", options=OPTIONS)
    sets = RegionSets(trial, CPU, seed=1, most=1)
    compiler = RegionCompiler(trial, CPU)
    try:
        (out,) = compiler.make_call(Candidate(LIBRARY), sets)(0)  # type: ignore[misc]  # a tuple
        (expected,) = compiler.make_reference(sets)
    finally:
        compiler.close()
    assert torch.allclose(out, expected.float(), rtol=1e-4, atol=1e-4)
