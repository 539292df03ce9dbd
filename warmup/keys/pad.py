"""`PadProblem`: an unaligned GEMM that inductor may pad at each call; row kind ``pad``.

    pad addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d free=a

Without a row, inductor's pad_mm pass times the GEMM against the GEMM with its operands padded to
aligned sizes, in every mode of torch.compile (torch/_inductor/fx_passes/pad_mm.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from warmup.core.roofline import Work, item_bytes
from warmup.core.rows import Family, Winner
from warmup.keys.gemm import DIM, LAYOUT, RANGE, Dim, Layout, ProductProblem, multiplied_in
from warmup.keys.kind import Kind

PADDED: Final = Winner(Family.PAD, "padded")
AS_IS: Final = Winner(Family.PAD, "as_is")


def _work(ingredients: Mapping[str, str]) -> Work | None:
    """Count the product as it is, which padding only adds to."""
    sizes = [Dim.read(ingredients.get(name, "1")).high for name in ("batch", "m", "n", "k")]
    if None in sizes:
        return None
    batch, m, n, k = (size or 0 for size in sizes)
    moved = batch * (m * k + k * n + m * n) * item_bytes(ingredients["dtype"])
    return Work(multiplied_in(ingredients), 2 * batch * m * n * k, moved)


PAD: Final = Kind(
    name="pad",
    pattern=re.compile(
        rf"pad (?:mm|addmm|bmm)(?: batch={DIM})? m={DIM} n={DIM} k={DIM} [a-z][a-z0-9_]*"
        rf" a={LAYOUT} b={LAYOUT}(?: bias=[a-z0-9]+)?(?: free=(?:a|b|ab))?(?: fp32=[a-z0-9]+)?"
    ),
    words=("kind", "op", "dtype"),
    fixed=2,
    families=frozenset({Family.PAD}),
    nearest_by=("m",),
    ranges=("m", "n", "k"),
    neutral=AS_IS,  # a padded GEMM has another key
    hooks="warmup.inductor.pad_mm:PadDecisions",
    rebuild="warmup.models.rebuilt:rebuild_pad",
    sites=frozenset({"pad"}),
    precedes_graphs=True,
    brief_format="{op} {n}x{k}",
    work=_work,
    is_product=True,
)


@dataclass(frozen=True, kw_only=True)
class PadProblem(ProductProblem):
    """A GEMM whose operands inductor's pad_mm pass may pad; sizes are in elements.

    ``free`` names the operands (``a``, ``b``) whose padding costs nothing, because the kernel that
    produces them can write them padded.
    """

    kind = PAD

    op: str
    batch: Dim | None = None
    m: Dim
    n: Dim
    k: Dim
    dtype: str
    a: Layout
    b: Layout
    bias: str | None = None
    free: str = ""
    fp32: str | None = None

    def keys_in_region(self) -> frozenset[str]:
        """Return the keys under which a smaller graph, at the upper end, may ask about this GEMM.

        What produces an operand may be outside of the smaller graph: then its padding is not free
        there. A range without an upper end stays a range.
        """
        fixed = self.of_key(RANGE.sub(r"\1", self.key))
        return frozenset(replace(fixed, free=free).key for free in ("", "a", "b", "ab"))
