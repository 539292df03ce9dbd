"""Regions of products in 8 bits: eager results pass against the reference, wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from warmup.core.method import Method
from warmup.core.rows import Family, Rejection, Winner
from warmup.core.trial import Trial
from warmup.inductor.gemm.regions import module_of, region_of
from warmup.keys.gemm import GemmProblem
from warmup.keys.question import GemmQuestion
from warmup.measuring.reference import judge_output
from warmup.table.schema import TOLERANCE
from warmup.tuning.trials import region_trial
from warmup.tuning.worker import RegionCompiler, RegionSets

CPU = torch.device("cpu")
FP8 = torch.float8_e4m3fn
ROWS, WIDTH, INNER = 48, 64, 96
LIBRARY = Winner(Family.EXTERN, "aten::_scaled_mm")
_aten = torch.ops.aten


def gate(x: Any, up: Any, weight: Any, of_x: Any, of_weight: Any) -> Any:
    """Return a gated product quantized again, and its scales, as the input of the next product."""
    y = torch._scaled_mm(x, weight.t(), of_x, of_weight, out_dtype=torch.bfloat16)
    y = torch.relu(y) * up
    scale = y.abs().amax(-1, keepdim=True).float() / 448
    return (y.float() / scale).clamp(-448, 448).to(FP8), scale


def dequantize(x: Any, up: Any, weight: Any, of_x: Any, of_weight: Any) -> Any:
    """Return an integer product times its scales, quantized again, and the bf16 in between."""
    y = (torch._int_mm(x, weight.t()) * of_x * of_weight).to(torch.bfloat16) * up
    scale = y.abs().amax().float() / 127
    return (y.float() / scale).round().to(torch.int8), y


CASES = {
    "fp8": (gate, FP8, _aten._scaled_mm.default, "scaled_mm", "bf16"),
    "int8": (dequantize, torch.int8, _aten._int_mm.default, "int_mm", "i32"),
}


def trial_of(case: str) -> Trial:
    """Return the trial of the region that the case's function has on the CPU."""
    function, dtype, target, op, out = CASES[case]
    up = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)
    factors = torch.randn(ROWS, INNER).to(dtype), up, torch.randn(WIDTH, INNER).to(dtype)
    # On the CPU torch 2.11 multiplies in fp8 with one scale for each factor only.
    scales = [(), ()] if dtype is FP8 else [(ROWS, 1), (1, WIDTH)]
    graph = make_fx(function, tracing_mode="fake")(*factors, *map(torch.ones, scales))
    gemm = next(node for node in graph.graph.nodes if node.target is target)
    region = region_of(gemm, (), has_epilogue=True)
    assert region is not None
    key = f"{op} m={ROWS} n={WIDTH} k={INNER} i8 a=row b=col out={out} | epilogue=none"
    question = GemmQuestion(GemmProblem.of_key(key), "cpu", (), library=LIBRARY)
    return region_trial(question, region, Method(), TOLERANCE, seed=0)


def test_only_what_eager_computes_passes() -> None:
    """Each output is within its tolerance of the region in higher precision."""
    for case in CASES:
        for judged in judge(case, lambda out: out):
            assert judged is None, case
    # A result that is a quarter too large in one output is wrong, in 8 bits too.
    for case in CASES:
        assert set(judge(case, lambda out: (out.float() * 1.25).to(out.dtype))) == {Rejection.WRONG}


def judge(case: str, change: Callable[[torch.Tensor], torch.Tensor]) -> list[Rejection | None]:
    """Return for each output of the case what comes of judging it after *change*."""
    trial = trial_of(case)
    assert trial.region is not None
    sets = RegionSets(replace(trial, device="cpu"), CPU, seed=1, most=1)
    outputs = module_of(trial.region, CPU)(*sets.views(0))
    compiler = RegionCompiler(trial, CPU)
    try:
        expected = compiler.make_reference(sets)
    finally:
        compiler.close()
    assert trial.tolerance is not None
    found = []
    for out, reference in zip(outputs, expected, strict=True):
        name = str(out.dtype).removeprefix("torch.")
        tolerance = trial.tolerances.get(name, trial.tolerance)
        found.append(judge_output(change(out), reference, tolerance)[1])
    return found
