"""`rebuild_grouped`: a small model, made from one grouped key, that multiplies groups.

Its rows are sent to the groups as a build sends them (`ends_of_groups`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import nn

from warmup.buckets.bucket import Bucket
from warmup.core.dtypes import item_bytes
from warmup.core.errors import ProblemError
from warmup.keys.gemm import Dim, GemmProblem
from warmup.keys.grouped import OF_EACH_GROUP, GroupedProblem, Over, ends_of_groups
from warmup.keys.grouped_text import parse_grouped
from warmup.keys.weight import ALIGNED_BYTES
from warmup.models.gemm_tensors import OperandTensor, check_memory, gemm_tensors
from warmup.models.loading import LoadedModel
from warmup.models.rebuilt import RebuiltProblem


def rebuild_grouped(key: str, device: torch.device) -> RebuiltProblem:
    """Return a module on *device* that multiplies the groups of *key*.

    Raises:
        ProblemError: *key* is no grouped key, or its operands cannot be made.
    """
    problem = parse_grouped(key)
    if problem.out != problem.dtype:
        raise ProblemError(f"a result in {problem.out} of factors in {problem.dtype} is not made")
    tensors = factors_of(problem)
    check_memory(tensors, device)
    ends = ends_for(problem)

    def make_inputs(**_sizes: int) -> tuple[torch.Tensor, ...]:
        factors = [tensor.make(device) for tensor in tensors]
        offsets = torch.tensor(ends, dtype=torch.int32, device=device)
        return (*factors, offsets) if ends else tuple(factors)

    sizes = {"groups": problem.groups, "m": problem.m, "n": problem.n, "k": problem.k}
    return RebuiltProblem(
        model=LoadedModel(_GroupedModule().eval(), make_inputs, "rebuilt"),
        bucket=Bucket(tuple(sizes.items())),
        settings=contextlib.nullcontext,
        dtype=problem.dtype,
    )


def factors_of(problem: GroupedProblem) -> tuple[OperandTensor, OperandTensor]:
    """Return both factors of *problem*, of two dims or, with a matrix for each group, of three.

    Raises:
        ProblemError: a factor cannot be made.
    """
    m, n, k = (Dim.of(size) for size in (problem.m, problem.n, problem.k))
    whole, each = (
        gemm_tensors(
            GemmProblem(
                op=op,
                batch=batch,
                m=m,
                n=n,
                k=k,
                dtype=problem.dtype,
                a=problem.a,
                b=problem.b,
                out=problem.out,
            )
        )
        for op, batch in (("mm", None), ("bmm", Dim.of(problem.groups)))
    )
    a, b = (
        each[name] if name in OF_EACH_GROUP[problem.over] else whole[name] for name in ("a", "b")
    )
    return a, b


def ends_for(problem: GroupedProblem) -> Sequence[int]:
    """Return where the groups of *problem* end, in elements of the size that they divide.

    Groups of columns and of factors have about the same size, with aligned ends; empty where
    nothing is divided.
    """
    if problem.over is Over.NOTHING:
        return ()
    if problem.over is Over.M:
        return ends_of_groups(problem.m, problem.groups)
    size = {Over.N: problem.n, Over.K: problem.k}[problem.over]
    unit = ALIGNED_BYTES // item_bytes(problem.dtype)
    inner = [size * group // problem.groups // unit * unit for group in range(1, problem.groups)]
    return (*inner, size)


class _GroupedModule(nn.Module):
    """The products of two factors whose groups end at the third argument, if there is one."""

    def forward(
        self, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the products."""
        return torch._grouped_mm(a, b, ends)  # noqa: SLF001  its name in torch 2.11
