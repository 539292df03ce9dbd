"""`few_rows_candidates`: candidates of warmup's own templates for products with few rows.

They are made from a candidate of inductor's mm template for the same problem, which has what
depends on the operands: the accumulator's type and precision, the bias of an addmm, and the scales
of a scaled_mm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.virtualized import V

from warmup.inductor.gemm.templates.dots import DOTS, DOTS_TILES
from warmup.inductor.gemm.templates.swapped import SWAPPED, SWAPPED_TILES
from warmup.inductor.gemm.tiles import depth_factor

_Tiles = Mapping[int, tuple[tuple[int, int, int, int], ...]]  # by the rows of a block
_FEW_ROWS_TEMPLATES: Final[Mapping[str, tuple[Any, _Tiles]]] = {
    SWAPPED.uid: (SWAPPED, SWAPPED_TILES),
    DOTS.uid: (DOTS, DOTS_TILES),
}
FEW_ROWS_UIDS: Final = tuple(_FEW_ROWS_TEMPLATES)
_FEW_ROWS_OPS: Final = frozenset({"mm", "addmm", "scaled_mm"})
# By the dtype of both operands, the dtypes that a result may have.
_RESULT_DTYPES: Final = {
    torch.bfloat16: {torch.bfloat16},
    torch.float16: {torch.float16},
    torch.float8_e4m3fn: {torch.bfloat16, torch.float16},
}


def rows_of_block(uid: str, kernel_inputs: Any, op_name: str) -> int | None:
    """Return the rows of a block of the template *uid*, None where it is not for this problem.

    The templates are for up to 64 rows, `DOTS` for up to 4, and for weights of 16 or 8 bits in
    which K is contiguous, as in those of a linear: along N each thread would read a line of memory
    for one element. The result has the operands' dtype, and after operands of 8 bits one of 16.
    """
    if op_name not in _FEW_ROWS_OPS:
        return None
    a, b = kernel_inputs.mat1mat2()
    results = _RESULT_DTYPES.get(a.get_dtype(), set())
    if a.get_dtype() != b.get_dtype() or kernel_inputs.output_layout().dtype not in results:
        return None
    sizevars = V.graph.sizevars
    if not sizevars.statically_known_equals(b.get_stride()[0], 1):
        return None
    rows, (_, sizes) = kernel_inputs.mnk_symbolic()[0], _FEW_ROWS_TEMPLATES[uid]
    return next((size for size in sizes if sizevars.statically_known_leq(rows, size)), None)


def few_rows_candidates(uid: str, base: Any, kernel_inputs: Any, block_m: int) -> Iterator[Any]:
    """Yield the choices of the template *uid* for a problem that it is for.

    *base* is any choice of inductor's mm template for this problem, and *block_m* what
    `rows_of_block` returns.
    """
    template, tiles = _FEW_ROWS_TEMPLATES[uid]
    depth = kernel_inputs.mnk_symbolic()[2]
    for block_n, deep, stages, warps in tiles[block_m]:
        block_k = deep * depth_factor(kernel_inputs)
        own = {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "EVEN_K": bool(V.graph.sizevars.statically_known_multiple_of(depth, block_k)),
            "num_stages": stages,
            "num_warps": warps,
        }
        params = type(base.params)({**base.params.to_kwargs(), **own})
        yield KernelTemplateChoice(template, params, base.extra_kwargs, base.layout, base.inputs)
