"""What is measured of a selection: library calls made again from JSON, and live operands."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")
import torch
from torch._inductor.autotune_process import ExternKernelGPUBenchmarkRequest
from torch._inductor.kernel.mm import aten__fp8_mm

from warmup.core.rows import Family, Method, Winner
from warmup.core.trial import (
    Candidate,
    Fill,
    TensorSpec,
    Trial,
    ViewSpec,
    trial_from_json,
    trial_to_json,
)
from warmup.inductor.gemm.question import _LiveOperands, make_call, spec_of
from warmup.measuring.reference import OperandSets, judge_output, reference_of

LIBRARY = Winner(Family.EXTERN, aten__fp8_mm.uid)
M, N, K = 32, 48, 64


def trial_of(candidate: Candidate) -> Trial:
    """Return the trial of a product with one scale for each factor, on the CPU."""
    tensors = (
        TensorSpec((M, K), (K, 1), 0, "float8_e4m3fn"),
        TensorSpec((K, N), (1, K), 0, "float8_e4m3fn"),
        TensorSpec((), (), 0, "float32", Fill.POSITIVE),  # torch 2.11 has no other on the CPU
        TensorSpec((), (), 0, "float32", Fill.POSITIVE),
    )
    return Trial(
        key="",
        op="scaled_mm",
        device="cpu",
        operands=tensors,
        views=tuple(ViewSpec(i, one.sizes, one.strides, 0) for i, one in enumerate(tensors)),
        out=TensorSpec((M, N), (N, 1), 0, "bfloat16"),
        candidates=(candidate,),
        library=LIBRARY,
        method=Method(),
    )


def test_the_librarys_scaled_product_is_called_in_another_process() -> None:
    """`torch._scaled_mm` takes the dtype of its result; what JSON carries of it is enough."""
    request = ExternKernelGPUBenchmarkRequest(
        kernel_name=aten__fp8_mm.name,
        input_tensor_meta=[],
        output_tensor_meta=[],
        extra_args=(),
        callable_path=aten__fp8_mm.call_name(),
        kwargs={"out_dtype": torch.bfloat16, "use_fast_accum": True},
        has_out_variant=True,
    )
    spec = spec_of(SimpleNamespace(bmreq=request))
    assert spec is not None
    sent = json.dumps(trial_to_json(trial_of(Candidate(LIBRARY, spec))))
    trial = trial_from_json(json.loads(sent))
    sets = OperandSets(trial, torch.device("cpu"), seed=0, most=1)
    sets.poison()
    make_call(trial.candidates[0], sets)(0)
    reference = reference_of(trial, sets.views(0))
    assert reference is not None
    assert reference.dtype is torch.float32
    assert judge_output(sets.out(0), reference, 2e-2)[1] is None


def test_an_expanded_operand_is_filled_once() -> None:
    """A bias that repeats along the rows has random values, the same in each row."""
    bias = torch.zeros(6).expand(4, 6)
    args = SimpleNamespace(extern=SimpleNamespace(input_tensors=[bias]))
    _LiveOperands(args, frozenset(), seed=0)
    assert bias.stride() == (0, 1)
    assert bias[0].unique().numel() == 6
    assert torch.equal(bias, bias[:1].expand(4, 6))
