"""`rebuild_pad`: a small model, made from one pad key, for which inductor asks whether to pad.

A GEMM alone, whose operands are inputs; an operand whose padding is free is made by an operation
before it, as in the model that the key came from, so that a kernel can write it padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

from warmup.buckets.bucket import Bucket
from warmup.keys.gemm import GemmProblem
from warmup.keys.pad import PadProblem
from warmup.keys.pad_text import parse_padding
from warmup.models.gemm_tensors import OperandTensor, check_memory, gemm_tensors, size_of
from warmup.models.loading import LoadedModel
from warmup.models.precision import precision_of
from warmup.models.rebuilt import RebuiltProblem


def rebuild_pad(key: str, device: torch.device) -> RebuiltProblem:
    """Return the module of `make_pad_module` for *key* on *device*, with the settings it needs.

    Raises:
        ProblemError: *key* is not a pad key, or its operands cannot be made.
    """
    problem = parse_padding(key)
    module, tensors = make_pad_module(problem)
    check_memory(tensors.values(), device)

    def make_inputs(**_sizes: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.make(device) for tensor in tensors.values())

    dims = {"batch": problem.batch, "m": problem.m, "n": problem.n, "k": problem.k}
    sizes = tuple((name, size_of(dim)) for name, dim in dims.items() if dim is not None)
    return RebuiltProblem(
        model=LoadedModel(module, make_inputs, "rebuilt"),
        bucket=Bucket(sizes),
        settings=partial(precision_of, gemm_of(problem), device),
        dtype=problem.dtype,
    )


def gemm_of(problem: PadProblem) -> GemmProblem:
    """Return the GEMM of *problem* as it is, alone."""
    return GemmProblem(
        op=problem.op,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        batch=problem.batch,
        dtype=problem.dtype,
        a=problem.a,
        b=problem.b,
        bias=problem.bias,
        out=problem.dtype,
        fp32=problem.fp32,
    )


def make_pad_module(problem: PadProblem) -> tuple[nn.Module, Mapping[str, OperandTensor]]:
    """Return a module that should ask for *problem*, and its arguments by name, in order.

    Raises:
        ProblemError: the operands cannot be made.
    """
    tensors = gemm_tensors(gemm_of(problem))
    return _PadModule(problem.op, problem.free, tuple(tensors)).eval(), tensors


class _PadModule(nn.Module):
    """The product *op* of arguments called *names*; those of *free* are made before it."""

    def __init__(self, op: str, free: str, names: tuple[str, ...]) -> None:
        super().__init__()
        self.op, self.free, self.names = op, free, names

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        named = dict(zip(self.names, arguments, strict=True))
        a, b = (-named[name] if name in self.free else named[name] for name in ("a", "b"))
        if self.op == "addmm":
            return torch.addmm(named["bias"], a, b)
        return torch.bmm(a, b) if self.op == "bmm" else torch.mm(a, b)
