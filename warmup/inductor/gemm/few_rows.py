"""`few_rows_candidates`: candidates of warmup's own templates for products with few rows.

They are made from a candidate of inductor's mm template for the same problem, which has what
depends on the operands: the accumulator's type and precision, the bias of an addmm, and the scales
of a scaled_mm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.virtualized import V

from warmup.inductor.gemm.templates import dots, swapped

FEW_ROWS_UIDS: Final = frozenset({swapped.SWAPPED.uid, dots.DOTS.uid})
_SCALED_OP: Final = "scaled_mm"
_HALF_DTYPES: Final = frozenset({torch.bfloat16, torch.float16})
# By op, the dtypes of both operands. The result has theirs, of a scaled_mm one of 16 bits.
_FEW_ROWS_DTYPES: Final = {
    "mm": _HALF_DTYPES,
    "addmm": _HALF_DTYPES,
    _SCALED_OP: frozenset({torch.float8_e4m3fn}),
}
_TILE_BYTES: Final = 2  # of the elements that the tiles were measured with
_ROWS_OF_BLOCKS: Final = (16, 32, 64)


def takes_few_rows(kernel_inputs: Any, op_name: str) -> bool:
    """Return whether the templates are for this problem: up to 64 rows, weights of 16 or 8 bits.

    Weights are taken where K is contiguous in them, as a linear has them: along N each thread would
    read a line of memory for one element.
    """
    if op_name not in _FEW_ROWS_DTYPES or _block_m(kernel_inputs) is None:
        return False
    a, b = kernel_inputs.mat1mat2()
    dtypes, result = {a.get_dtype(), b.get_dtype()}, kernel_inputs.output_layout().dtype
    if len(dtypes) != 1 or not dtypes <= _FEW_ROWS_DTYPES[op_name]:
        return False
    if result not in (_HALF_DTYPES if op_name == _SCALED_OP else dtypes):
        return False
    return bool(V.graph.sizevars.statically_known_equals(b.get_stride()[0], 1))


def few_rows_candidates(base: Any, kernel_inputs: Any) -> Iterator[Any]:
    """Yield choices of the templates for a problem that they are for.

    *base* is any choice of inductor's mm template for this problem.
    """
    block_m = _block_m(kernel_inputs)
    if block_m is None:
        return
    rows = kernel_inputs.mnk_symbolic()[0]
    for tile in swapped.SWAPPED_TILES:
        yield _choice(swapped.SWAPPED, base, kernel_inputs, block_m, tile)
    if V.graph.sizevars.statically_known_equals(rows, 1):
        for tile in dots.DOTS_TILES:
            yield _choice(dots.DOTS, base, kernel_inputs, 1, tile)


def _block_m(kernel_inputs: Any) -> int | None:
    """Return the rows of a block, which are those of the problem; None for more than 64."""
    rows, sizevars = kernel_inputs.mnk_symbolic()[0], V.graph.sizevars
    fitting = (each for each in _ROWS_OF_BLOCKS if sizevars.statically_known_leq(rows, each))
    return next(fitting, None)


def _choice(
    template: Any, base: Any, kernel_inputs: Any, block_m: int, tile: tuple[int, int, int, int]
) -> Any:
    block_n, block_k, stages, warps = tile
    # A tile of 8-bit operands is twice as deep, so that it loads as many bytes.
    block_k *= _TILE_BYTES // kernel_inputs.mat1mat2()[0].get_dtype().itemsize
    depth = kernel_inputs.mnk_symbolic()[2]
    is_even = bool(V.graph.sizevars.statically_known_multiple_of(depth, block_k))
    own = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "EVEN_K": is_even}
    own |= {"num_stages": stages, "num_warps": warps}
    params = type(base.params)({**base.params.to_kwargs(), **own})
    return KernelTemplateChoice(template, params, base.extra_kwargs, base.layout, base.inputs)
