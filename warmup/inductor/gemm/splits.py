"""`split_candidates`: decompose_k candidates with more splits of K than inductor tries.

Inductor tries ten splits, and only if K is at least 32 times M and N. A GEMM with few rows has few
blocks at any K; splitting K gives it more.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any, Final

from torch._inductor.kernel.mm import decompose_k_subgraph_template, mm_template
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.virtualized import V

from warmup.inductor.options import option_value
from warmup.inductor.versions import Version

SPLIT_UID: Final[str] = decompose_k_subgraph_template.uid
_LEAST_PART: Final = 128  # of K, as in inductor (torch/_inductor/utils.py, get_k_splits)
_EVEN_PART: Final = 32  # a part that is a multiple ends at the end of a tile
_SUM_BYTES: Final = 4


def splits_of(m: int, n: int, k: int, itemsize: int, *, only_even: bool) -> tuple[int, ...]:
    """Return the numbers of parts into which splitting K is worth trying, ascending.

    These are the divisors of K whose parts have at least 128 elements and whose partial sums take
    no more bytes than the operands, since the sums are written and read back. For a square GEMM of
    16-bit operands that is inductor's bound, K / M. *only_even* keeps parts of multiples of 32 or,
    where K is none, of the largest power of two that divides K.
    """
    even = gcd(k, _EVEN_PART) if only_even else 1
    limit = min(k // _LEAST_PART, itemsize * k * (m + n) // (_SUM_BYTES * m * n)) if m and n else 0
    return tuple(
        split for split in range(2, limit + 1) if k % split == 0 and k // split % even == 0
    )


def split_candidates(
    version: Version,
    kernel_inputs: Any,
    templates: list[Any],
    op_name: str,
    *,
    only_even: bool = False,
) -> Iterator[Any]:
    """Yield decompose_k choices if the lowering offers Triton and all sizes are constants."""
    offered = {template.uid for template in templates}
    sizes = kernel_inputs.mnk_symbolic()
    if (
        op_name != "mm"
        or not offered & {SPLIT_UID, mm_template.uid}
        or any(getattr(size, "free_symbols", None) for size in sizes)
        or not option_value("triton.num_decompose_k_splits")
        or V.graph.aot_mode  # subgraphs do not work there (utils.py, use_decompose_k_choice)
        or V.graph.cpp_wrapper
    ):
        return
    m, n, k = map(int, sizes)
    for split in splits_of(m, n, k, kernel_inputs.dtype().itemsize, only_even=only_even):
        yield KernelTemplateChoice(
            decompose_k_subgraph_template,
            version.TemplateParams({"k_split": split}),
            {},
            kernel_inputs.output_layout(),
            kernel_inputs,
        )
