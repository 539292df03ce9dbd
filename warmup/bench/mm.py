"""`bench_mm`: plain matmuls by the library, by inductor's templates, and from a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from warmup.bench.backends import (
    KeepReport,
    OpenLayer,
    Sizes,
    compare_layers,
    make_setup,
    parse_shapes,
)
from warmup.bench.cells import BenchReport, Pass, Say
from warmup.core.method import L2, Launch, OptionValue

MATMUL_ROUNDS: Final = 50
# AlexNet, BERT, GPT-2: those of torch's own microbenchmark inductor_mm.py.
MATMUL_SHAPES: Final[tuple[Sizes, ...]] = (
    *((128, 9216, 4096), (128, 4096, 4096), (128, 4096, 1000)),
    *((2048, 768, 768), (2048, 768, 3072), (2048, 3072, 768)),
    *((1024, 768, 768), (1024, 768, 3072), (1024, 3072, 768), (1024, 768, 2304)),
)
_AUTOTUNED: Final = {"max_autotune_gemm": True}
# Inductor's C++ template needs constant weights.
_ON_CPU: Final[Mapping[str, Mapping[str, OptionValue]]] = {
    "max-autotune": {**_AUTOTUNED, "max_autotune_gemm_backends": "ATEN,CPP", "freezing": True},
    "cpp-template": {**_AUTOTUNED, "max_autotune_gemm_backends": "CPP", "freezing": True},
}
_ON_GPU: Final[Mapping[str, Mapping[str, OptionValue]]] = {
    "max-autotune": {**_AUTOTUNED, "max_autotune_gemm_backends": "ATEN,TRITON"},
    "triton-template": {**_AUTOTUNED, "max_autotune_gemm_backends": "TRITON"},
}


class Matmul(nn.Module):
    """The product of two row-major matrices; *weight*, where given, is the second and constant."""

    title, sizes = "Matmuls", "M x K x N"

    def __init__(self, shapes: Sequence[Sizes], weight: torch.Tensor | None = None) -> None:
        super().__init__()
        self.shapes = shapes
        self.weight = None if weight is None else nn.Parameter(weight, requires_grad=False)

    def inputs(self, shape: Sizes) -> tuple[torch.Tensor, ...]:
        """Return the matrices of *shape*, M x K x N, without the weight."""
        m, k, n = shape
        return torch.randn(m, k), *([torch.randn(k, n)] if self.weight is None else [])

    def flops(self, shape: Sizes) -> int:
        """Return the operations: a multiplication and an addition for each step of K."""
        m, k, n = shape
        return 2 * m * k * n

    def eager(self, a: torch.Tensor, b: torch.Tensor | None = None) -> Any:
        """Return the product by the library, cuBLAS or mkl."""
        return torch.mm(a, self.weight if b is None else b)  # type: ignore[arg-type]


def bench_mm(
    *,
    shapes: str | None = None,
    backends: str | None = None,
    dtype: str = "f16",
    rounds: int = MATMUL_ROUNDS,
    launch: str = Launch.CUDAGRAPH,
    l2: str = L2.COLD,
    table: Path | None = None,
    out: Path | None = None,
    device: str = "auto",
    say: Say = lambda _line: None,
    keep: KeepReport = lambda _report: None,
) -> BenchReport:
    """Return the times of matmuls of *shapes* on *backends*, or the reasons for missing times.

    Arguments have the text form of the command line; the defaults are `MATMUL_SHAPES` and all
    backends. On a CPU the second matrix is a constant weight.

    Raises:
        SettingsError: an argument is not valid.
        TableError: the table cannot be read.
        AdapterError: this torch is not supported.
    """
    wanted = MATMUL_SHAPES if shapes is None else parse_shapes(shapes, 3)
    setup = make_setup("mm", device=device, dtype=dtype, launch=launch, l2=l2, rounds=rounds)
    is_cpu = setup.device.type == "cpu"
    setup = replace(setup, steps=(Pass.FORWARD,), compiled=_ON_CPU if is_cpu else _ON_GPU)
    places = [
        (OpenLayer.of(Matmul([shape], torch.randn(shape[1:]) if is_cpu else None), "mm"), shape)
        for shape in wanted
    ]
    return compare_layers(
        setup, places, backends=backends, table=table, out=out, say=say, keep=keep
    )
