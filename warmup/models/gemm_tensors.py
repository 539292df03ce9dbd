"""The tensors of a GEMM key: operands with the sizes, strides and dtypes that it names."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from warmup.core.errors import ProblemError
from warmup.inductor.dynamic_dims import mark_range
from warmup.keys.gemm import CPU_LINEAR, Dim, GemmProblem, Layout
from warmup.keys.gemm_text import Call, Operand, operands_of
from warmup.models.loading import DTYPES

_BIAS_DIMS: Final = {"scalar": "", "1d": "n", "2d": "mn", "3d": "bmn"}
_LETTERS: Final = "bmn"
_SMALL_INTEGERS: Final = 8
_MAX_STRIDE: Final = 2**62
_ONE: Final = Dim.of(1)


@dataclass(frozen=True, slots=True)
class OperandTensor:
    """One tensor to make. Sizes may be dynamic; strides, in elements, are static."""

    sizes: tuple[Dim, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    scale: float = 1

    @property
    def elements(self) -> int:
        """Elements of memory from its first to its last."""
        spans = zip(self.sizes, self.strides, strict=True)
        return 1 + sum((size_of(dim) - 1) * stride for dim, stride in spans)

    def make(self, device: torch.device) -> torch.Tensor:
        """Return a new tensor of random values.

        Raises:
            ProblemError: torch cannot make it.
        """
        try:
            return self._make(device)
        except (OverflowError, RuntimeError, TypeError) as error:
            said = str(error).partition("\n")[0]
            raise ProblemError(f"an operand cannot be made: {said}") from error

    def _make(self, device: torch.device) -> torch.Tensor:
        if self.dtype.is_floating_point:
            flat = torch.randn(self.elements, device=device).mul_(self.scale)
        else:
            flat = torch.randint(0, _SMALL_INTEGERS, (self.elements,), device=device)
        sizes = [size_of(dim) for dim in self.sizes]
        made = flat.to(self.dtype).as_strided(sizes, self.strides)
        for position, dim in enumerate(self.sizes):
            if not dim.is_static:
                mark_range(made, position, dim.low, dim.high)
        return made


def gemm_tensors(problem: GemmProblem) -> dict[str, OperandTensor]:
    """Return the operands of the GEMM by name; ``b`` of a CPU linear is its weight.

    Raises:
        ProblemError: they cannot be made.
    """
    if problem.dtype_b is not None:
        raise ProblemError(f"the operands have two dtypes, {problem.dtype} and {problem.dtype_b}")
    batch = () if problem.batch is None else (problem.batch,)
    m, n, k = problem.m, problem.n, problem.k
    dtype = dtype_of(problem.dtype)
    scale = 1 / math.sqrt(max(size_of(k), 1))

    def matrix(rows: Dim, cols: Dim, layout: Layout, scale: float = 1) -> OperandTensor:
        return OperandTensor(
            (*batch, rows, cols), _strides(batch, rows, cols, layout), dtype, scale
        )

    made = {"a": matrix(m, k, problem.a)}
    if problem.op in CPU_LINEAR:
        made["b"] = matrix(n, k, Layout("row"), scale)
    else:
        made["b"] = matrix(k, n, problem.b, scale)
    if problem.a2 is not None and problem.b2 is not None:
        made |= {"a2": matrix(m, k, problem.a2), "b2": matrix(k, n, problem.b2, scale)}
    if problem.bias is not None:
        made["bias"] = _dense(_bias_sizes(problem, problem.bias), dtype)
    return made


def epilogue_tensors(problem: GemmProblem, steps: Sequence[Call]) -> dict[str, OperandTensor]:
    """Return the operands of the epilogue *steps*, named by their number.

    Raises:
        ProblemError: they cannot be made.
    """
    out = [dim for dim in (problem.batch, problem.m, problem.n) if dim is not None]
    found = (operand for step in steps for operand in operands_of(step))
    return {
        str(number): _dense(_fitted(operand, out), dtype_of(operand.dtype))
        for number, operand in enumerate(found)
    }


def _bias_sizes(problem: GemmProblem, form: str) -> list[Dim]:
    letters = _BIAS_DIMS.get(form, form)
    named = {"b": problem.batch, "m": problem.m, "n": problem.n}
    if any(named.get(letter) is None for letter in letters):
        raise ProblemError(f"no stand-in has bias={form}")
    spread = _LETTERS[_LETTERS.index(letters[0]) :] if letters else ""
    return [(letter in letters and named[letter]) or _ONE for letter in spread]


def _fitted(operand: Operand, out: Sequence[Dim]) -> list[Dim]:
    """Return the sizes of *operand* beside a GEMM with the sizes *out*."""
    dynamic = {dim for dim in out if not dim.is_static}
    if None in operand.sizes and len(dynamic) != 1:
        raise ProblemError("an operand of the epilogue has a size that the key does not tell")
    sizes = [next(iter(dynamic)) if size is None else Dim.of(size) for size in operand.sizes]
    pairs = zip(reversed(sizes), reversed(out), strict=False)
    if len(sizes) <= len(out) and all(mine in (theirs, _ONE) for mine, theirs in pairs):
        return sizes
    # The operand of a batched GEMM is spelled as the kernel sees it, with two dims.
    if math.prod(map(size_of, sizes)) == math.prod(map(size_of, out)):
        return list(out)
    raise ProblemError("an operand of the epilogue has other dims than the GEMM")


def _dense(sizes: Sequence[Dim], dtype: torch.dtype) -> OperandTensor:
    strides = [math.prod(size_of(dim) for dim in sizes[i + 1 :]) for i in range(len(sizes))]
    return OperandTensor(tuple(sizes), tuple(strides), dtype)


def _strides(batch: Sequence[Dim], rows: Dim, cols: Dim, layout: Layout) -> tuple[int, ...]:
    row_count, col_count = size_of(rows), size_of(cols)
    if layout.order == "row":
        matrix = (col_count if layout.leading is None else _fixed(layout.leading), 1)
    elif layout.order == "col":
        matrix = (1, row_count if layout.leading is None else _fixed(layout.leading))
    else:
        raise ProblemError(f"no stand-in has the layout {layout}")
    if not batch:
        return matrix
    return (row_count * col_count if layout.batch is None else _fixed(layout.batch), *matrix)


def size_of(dim: Dim) -> int:
    """Return a constant dim, or the largest size of a range.

    Raises:
        ProblemError: the range has no upper end.
    """
    if dim.high is None:
        raise ProblemError(f"the range {dim} has no upper end")
    return dim.high


def _fixed(dim: Dim) -> int:
    if not dim.is_static:
        raise ProblemError(f"the stride {dim} is dynamic")
    if dim.low > _MAX_STRIDE:
        raise ProblemError(f"the stride {dim} is out of range")
    return dim.low


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype that keys call *name*.

    Raises:
        ProblemError: there is none of that name that random values can be made of.
    """
    dtype = DTYPES.get(name)
    if dtype is None:
        raise ProblemError(f"no stand-in is made of {name}")
    return dtype


def check_memory(tensors: Iterable[OperandTensor], device: torch.device) -> None:
    """Return when *tensors* fit into the memory of *device*.

    Raises:
        ProblemError: they do not.
    """
    needed = sum(tensor.elements * max(tensor.dtype.itemsize, 4) for tensor in tensors)
    if device.type == "cpu":
        room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        room = torch.cuda.mem_get_info(device)[0]
    if needed > room:
        raise ProblemError(f"the operands take {needed / 2**30:.0f} GiB, more than there are")
