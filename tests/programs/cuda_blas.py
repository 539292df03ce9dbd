"""Lower products for the stated H100 beside a cuBLASLt that multiplies on the host.

A case is one of cuda_gemms.py, served with ``words`` in place of kwargs of the winner; ``version``
is that of cuBLASLt, ``aot`` lowers for AOTInductor, ``full`` reduces in full precision. With
``call`` a product is multiplied on the host by a function that generated code calls: ``m``, ``n``,
``k``, ``dtype``, ``bias`` as 1 or 2 dims, ``x`` and ``w`` by ``rows`` or ``columns``, ``gap``
elements between them, the weight ``off`` by some; ``timing`` as in a trial, ``most`` plans kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import cuda_gemms
import h100
import pytest
import torch
from h100 import GEMM_OPTIONS, Case
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config

from warmup.core.rows import Winner
from warmup.inductor.gemm import blas

MOST_PLANS = blas._MOST_PLANS
LIBRARY = Path(tempfile.mkdtemp()) / "libtorch_cuda.so"
SECOND = "id_66_tile_0_stages_2_splitk_0_red_0_swizzle_0_custom_1_inner_0_cluster_4"


def load() -> None:
    source = Path(__file__).with_name("cublaslt.cpp")
    compiler = os.environ.get("CXX", "g++")
    words = ("-O1", "-shared", "-fPIC", "-std=c++17", "-o", str(LIBRARY), str(source))
    subprocess.run([compiler, *words], check=True)
    blas.LIBRARY = LIBRARY  # type: ignore[misc]
    interface: Any = CudaInterface
    interface.get_raw_stream = staticmethod(lambda _index: 0)
    cuda: Any = torch.cuda
    cuda.device = lambda _index: nullcontext()


def search_or_serve(case: Case) -> dict[str, Any]:
    backends = case.pop("backends", "ATEN,TRITON,CUBLASLT")
    GEMM_OPTIONS["max_autotune_gemm_backends"] = backends
    serve = cuda_gemms.serve

    def serve_changed(case: Case, rows: dict[str, Winner]) -> dict[str, Any]:
        os.environ["STAND_IN_VERSION"] = str(case.get("version", 130100))
        blas.library_on.cache_clear()
        kwargs = case.get("words", {})
        rows = {
            key: replace(one, kwargs=tuple(sorted({**dict(one.kwargs), **kwargs}.items())))
            for key, one in rows.items()
        }
        calls: list[str] = []
        lower = cuda_gemms.lower

        def noting(case: Case) -> tuple[str, list[str]]:
            code, guards = lower(case)
            calls.extend(re.findall(r"warmup_blas_.*", code))
            return code, guards

        graph = SimpleNamespace(graph=SimpleNamespace(aot_mode=True, cpp_wrapper=True))
        ahead = mock.patch.object(blas, "V", graph) if case.get("aot") else nullcontext()
        with mock.patch.object(cuda_gemms, "lower", noting), ahead:
            return {**serve(case, rows), "blas": calls}

    cuda_gemms.serve = serve_changed
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = not case.get("full")
    try:
        with config.patch(GEMM_OPTIONS):
            return cuda_gemms.answer(case)
    finally:
        cuda_gemms.serve = serve
        os.environ.pop("STAND_IN_VERSION", None)
        blas.library_on.cache_clear()


def laid_out(rows: int, columns: int, case: Case, how: str) -> torch.Tensor:
    pitch, length = (rows, columns) if how == "columns" else (columns, rows)
    pitch += case.get("gap", 0)
    whole = torch.randn(length * pitch + case.get("off", 0)).to(getattr(torch, case["dtype"]))
    strides = (1, pitch) if how == "columns" else (pitch, 1)
    return whole.as_strided((rows, columns), strides, case.get("off", 0) * (how == case.get("w")))


def call(case: Case) -> dict[str, Any]:
    cuda: Any = torch.cuda
    cuda.current_device = lambda: -1  # of tensors on the host
    torch.manual_seed(0)
    m, n, k = case["m"], case["n"], case["k"]
    x, w = laid_out(m, k, case, case["x"]), laid_out(k, n, case, case["w"])
    x[0, 0] = case.get("first", 1.0)
    out = torch.full((m, n), 7.0, dtype=x.dtype)
    named = {"algorithm": case.get("algorithm", SECOND), "cublas": 130100, **case.get("words", {})}
    blas._MOST_PLANS = case.get("most", MOST_PLANS)  # type: ignore[misc]
    blas._plans.clear()
    if case.get("timing"):
        blas.refuse_fallbacks()
        with pytest.raises(blas.AlgorithmError) as raised:
            blas.CHOICES["mm"].to_callable()(x, w, **named, out=out)
        blas._is_timing.clear()
        return {"raised": str(raised.value)}
    blas.FALLBACKS.clear()
    events: list[Any] = []
    lookup = h100.Lookup({}, h100.OnMiss.STRICT, h100.Emitter([events.append]))
    with h100.attached(lookup):
        for _ in range(case.get("times", 1)):
            if bias_dims := case.get("bias"):
                bias = torch.randn(n).to(x.dtype)
                expected = torch.addmm(bias.float(), x.float(), w.float())
                wide = bias.expand(m, n) if bias_dims == 2 else bias
                blas.CHOICES["addmm"].to_callable()(wide, x, w, **named, out=out)
            else:
                expected = x.float() @ w.float()
                blas.CHOICES["mm"].to_callable()(x, w, **named, out=out)
    apart = (out.float() - expected).abs().max() / expected.abs().max()
    return {
        "apart": float(apart),
        "is_nan": out.isnan().any(1).tolist() if "first" in case else None,
        "fallbacks": {" ".join(key): count for key, count in blas.FALLBACKS.items()},
        "events": [{"name": event.name, **event.fields} for event in events],
    }


if __name__ == "__main__":
    load()
    cuda_gemms.count_templates()
    h100.answer_each(lambda case: call(case) if case.pop("call", 0) else search_or_serve(case))
