"""`PadProblem`: an unaligned GEMM that inductor may pad at each call; row kind ``pad``.

    pad addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d free=a

Without a row, inductor's pad_mm pass times the GEMM against the GEMM with its operands padded to
aligned sizes, in every mode of torch.compile (torch/_inductor/fx_passes/pad_mm.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from warmup.core.rows import Family, Winner
from warmup.keys.gemm import DIM, LAYOUT, Dim, Layout
from warmup.keys.kind import Kind, Problem

PADDED: Final = Winner(Family.PAD, "padded")
AS_IS: Final = Winner(Family.PAD, "as_is")
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
    work="warmup.keys.work:pad_work",
    product="warmup.keys.work:product_of",
)


@dataclass(frozen=True, kw_only=True)
class PadProblem(Problem):
    """A GEMM whose operands inductor's pad_mm pass may pad.

    Sizes are in elements. ``free`` names the operands (``a``, ``b``) whose padding costs nothing,
    because the kernel that produces them can write them padded.
    """

    kind = PAD

    op: str
    m: Dim
    n: Dim
    k: Dim
    dtype: str
    a: Layout
    b: Layout
    batch: Dim | None = None
    bias: str | None = None
    free: str = ""
    fp32: str | None = None

    def _spell(self) -> str:
        words = ["pad", self.op]
        words += [f"batch={self.batch}"] if self.batch is not None else []
        words += [f"m={self.m}", f"n={self.n}", f"k={self.k}", self.dtype]
        words += [f"a={self.a}", f"b={self.b}"]
        words += [f"bias={self.bias}"] if self.bias is not None else []
        words += [f"free={self.free}"] if self.free else []
        words += [f"fp32={self.fp32}"] if self.fp32 is not None else []
        return " ".join(words)

    def keys_in_region(self) -> frozenset[str]:
        """Return the keys under which a smaller graph, at the upper end, may ask about this GEMM.

        What produces an operand may be outside of the smaller graph: then its padding is not free
        there. A range without an upper end stays a range.
        """

        def end(dim: Dim) -> Dim:
            return dim if dim.high is None else Dim.of(dim.high)

        def layout(one: Layout) -> Layout:
            leading = None if one.leading is None else end(one.leading)
            return replace(
                one, leading=leading, batch=None if one.batch is None else end(one.batch)
            )

        fixed = replace(
            self,
            m=end(self.m),
            n=end(self.n),
            k=end(self.k),
            batch=None if self.batch is None else end(self.batch),
            a=layout(self.a),
            b=layout(self.b),
        )
        return frozenset(replace(fixed, free=free).key for free in ("", "a", "b", "ab"))
