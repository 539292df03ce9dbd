"""`OperandTensor`: a tensor of a GEMM problem, with the sizes, strides and dtype of its key."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from warmup.core.errors import ProblemError
from warmup.inductor.adapter import mark_range
from warmup.keys.gemm import CPU_LINEAR, Dim, GemmProblem, Layout
from warmup.keys.gemm_text import Call, Operand, operands_of
from warmup.models.loading import DTYPES

_NARROW_FLOATS: Final = {"f8_e4m3fn": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2}
_SCALE_TEXT: Final = re.compile(r"f32\[(?P<a>[0-9.,]*)\]:f32\[(?P<b>[0-9.,]*)\]")
_BIAS_DIMS: Final = {"scalar": "", "1d": "n", "2d": "mn", "3d": "bmn"}
_LETTERS: Final = "bmn"
_SMALL_INTEGERS: Final = 8
_MAX_STRIDE: Final = 2**62
_VIEWED_DIMS: Final = 3
_ONE: Final = Dim.of(1)


@dataclass(frozen=True, slots=True)
class OperandTensor:
    """A tensor that `make` makes: sizes may be dynamic, strides are static; both in elements.

    Random values of floating dtypes are multiplied by ``scale``, and positive if ``is_positive``.
    """

    sizes: tuple[Dim, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    scale: float = 1
    is_positive: bool = False

    @property
    def elements(self) -> int:
        """Elements of memory from the first to the last of the tensor, gaps included."""
        spans = zip(self.sizes, self.strides, strict=True)
        return 1 + sum((size_of(dim) - 1) * stride for dim, stride in spans)

    def make(self, device: torch.device) -> torch.Tensor:
        """Return a new tensor of random values; a dynamic dim has its largest size and a mark.

        Raises:
            ProblemError: torch cannot make the tensor.
        """
        try:
            return self._make(device)
        except (OverflowError, RuntimeError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ProblemError(f"an operand cannot be made: {reason}") from error

    def _make(self, device: torch.device) -> torch.Tensor:
        if self.dtype.is_floating_point:
            flat = torch.randn(self.elements, device=device).mul_(self.scale)
            flat = flat.abs_().add_(self.scale / 2) if self.is_positive else flat
        else:
            flat = torch.randint(0, _SMALL_INTEGERS, (self.elements,), device=device)
        sizes = [size_of(dim) for dim in self.sizes]
        tensor = flat.to(self.dtype).as_strided(sizes, self.strides)
        for position, dim in enumerate(self.sizes):
            if not dim.is_static:
                mark_range(tensor, position, dim.low, dim.high)
        return tensor


def gemm_tensors(problem: GemmProblem) -> dict[str, OperandTensor]:
    """Return the operands of the GEMM by name; ``b`` of a CPU linear is its weight.

    Raises:
        ProblemError: the key names a dtype, layout, stride or bias that no tensor can be made of.
    """
    is_scaled = problem.scale is not None
    if problem.dtype_b is not None and not is_scaled:
        raise ProblemError(f"the operands have two dtypes, {problem.dtype} and {problem.dtype_b}")
    batch = () if problem.batch is None else (problem.batch,)
    m, n, k = problem.m, problem.n, problem.k
    dtype = dtype_of(problem.dtype)
    scale = 1 / math.sqrt(max(size_of(k), 1))

    def matrix(rows: Dim, cols: Dim, layout: Layout, scale: float = 1) -> OperandTensor:
        return OperandTensor(
            (*batch, rows, cols), _strides(batch, rows, cols, layout), dtype, scale
        )

    tensors = {"a": matrix(m, k, problem.a)}
    if is_scaled:  # 8 bits are too few for small values: the scales make the result of size 1
        dtype_b = dtype_of(problem.dtype_b or problem.dtype)
        tensors["b"] = replace(matrix(k, n, problem.b), dtype=dtype_b)
        tensors |= _scale_tensors(problem, scale)
        if problem.bias is not None:
            tensors["bias"] = _dense([n], dtype_of(problem.out))
        return tensors
    if problem.op in CPU_LINEAR:
        tensors["b"] = matrix(n, k, Layout("row"), scale)
    else:
        tensors["b"] = matrix(k, n, problem.b, scale)
    if problem.a2 is not None and problem.b2 is not None:
        tensors |= {"a2": matrix(m, k, problem.a2), "b2": matrix(k, n, problem.b2, scale)}
    if problem.bias is not None:
        tensors["bias"] = _dense(_bias_sizes(problem, problem.bias), dtype)
    return tensors


def _scale_tensors(problem: GemmProblem, scale: float) -> dict[str, OperandTensor]:
    """Return the scales of a and b: each one value, or one for each row of a and column of b."""
    words = _SCALE_TEXT.fullmatch(problem.scale or "")
    if words is None:
        raise ProblemError(f"scale={problem.scale} cannot be rebuilt from a key")
    by_row = {"a": [problem.m, _ONE], "b": [_ONE, problem.n]}
    tensors = {}
    for name, sizes in by_row.items():
        known = {",".join(map(str, shape)): shape for shape in ([], [_ONE], [_ONE, _ONE], sizes)}
        shape = known.get(words[name])
        if shape is None:
            raise ProblemError(f"scale={problem.scale}: scales of blocks cannot be rebuilt")
        factor = scale if name == "b" else 1.0
        dense = _dense(shape, torch.float32)
        tensors[f"scale_{name}"] = replace(dense, scale=factor, is_positive=True)
    return tensors


def result_view(problem: GemmProblem, steps: Sequence[Call]) -> tuple[Dim, ...] | None:
    """Return the three dims as which the epilogue *steps* read the result; None where its own two.

    A model calls a linear on [batch, seqlen, width] and adds [batch, 1, width]: the result of the
    matrix product is viewed with three dims, and a key has the third where one of the dims is 1.
    """
    n, m = problem.n, problem.m
    for operand in (operand for step in steps for operand in operands_of(step)):
        if problem.batch is not None or len(operand.sizes) != _VIEWED_DIMS:
            continue
        first, second, _ = operand.sizes
        if first is None and second == 1 and not m.is_static:
            return m, _ONE, n
        if first and m.is_static and not m.low % first:
            return Dim.of(first), Dim.of(m.low // first), n
    return None


def epilogue_tensors(problem: GemmProblem, steps: Sequence[Call]) -> dict[str, OperandTensor]:
    """Return the operands of the epilogue *steps*, named by their number from 0.

    Raises:
        ProblemError: the key names a dtype or sizes that no tensor can be made of.
    """
    own = [dim for dim in (problem.batch, problem.m, problem.n) if dim is not None]
    out = result_view(problem, steps) or own
    operands = (operand for step in steps for operand in operands_of(step))
    return {
        str(number): _dense(_operand_sizes(operand, out), dtype_of(operand.dtype))
        for number, operand in enumerate(operands)
    }


def _bias_sizes(problem: GemmProblem, form: str) -> list[Dim]:
    letters = _BIAS_DIMS.get(form, form)
    named = {"b": problem.batch, "m": problem.m, "n": problem.n}
    if any(named.get(letter) is None for letter in letters):
        raise ProblemError(f"bias={form} cannot be rebuilt from a key")
    spread = _LETTERS[_LETTERS.index(letters[0]) :] if letters else ""
    return [(letter in letters and named[letter]) or _ONE for letter in spread]


def _operand_sizes(operand: Operand, out: Sequence[Dim]) -> list[Dim]:
    """Return the sizes of an epilogue's *operand*, after a GEMM with the output sizes *out*."""
    dynamic = {dim for dim in out if not dim.is_static}
    if None in operand.sizes and len(dynamic) != 1:
        raise ProblemError("an operand of the epilogue has a size that the key does not name")
    sizes = [next(iter(dynamic)) if size is None else Dim.of(size) for size in operand.sizes]
    pairs = zip(reversed(sizes), reversed(out), strict=False)
    if len(sizes) <= len(out) and all(size in (out_size, _ONE) for size, out_size in pairs):
        return sizes
    # The key has the operand of a batched GEMM as the kernel sees it, with two dims.
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
        raise ProblemError(f"the layout {layout} cannot be rebuilt from a key")
    if not batch:
        return matrix
    return (row_count * col_count if layout.batch is None else _fixed(layout.batch), *matrix)


def size_of(dim: Dim) -> int:
    """Return the size of a static dim, the largest size of a range.

    Raises:
        ProblemError: the range has no upper end.
    """
    if dim.high is None:
        raise ProblemError(
            f"the range {dim} has no upper end, so that it has no largest size to measure; "
            "mark the dim with a maximum, or build with the model"
        )
    return dim.high


def _fixed(dim: Dim) -> int:
    if not dim.is_static:
        raise ProblemError(f"the stride {dim} is dynamic")
    if dim.low > _MAX_STRIDE:
        raise ProblemError(f"the stride {dim} is out of range")
    return dim.low


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype that keys call *name*.

    Raises:
        ProblemError: *name* is no dtype, or a dtype without random values.
    """
    dtype = DTYPES.get(name) or _NARROW_FLOATS.get(name)
    if dtype is None:
        raise ProblemError(f"no random tensor has the dtype {name}")
    return dtype


def check_memory(tensors: Iterable[OperandTensor], device: torch.device) -> None:
    """Check that *tensors* together fit into the memory of *device*, of a GPU into what is free.

    Raises:
        ProblemError: they do not fit.
    """
    needed = sum(tensor.elements * max(tensor.dtype.itemsize, 4) for tensor in tensors)
    if device.type == "cpu":
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        available = torch.cuda.mem_get_info(device)[0]
    if needed > available:
        raise ProblemError(
            f"the operands take {needed / 2**30:.0f} GiB, {device} has {available / 2**30:.0f} GiB"
        )
