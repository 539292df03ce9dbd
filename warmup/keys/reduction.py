"""`ReductionProblem`: a kernel that reduces rows, in one step or in a loop; row kind ``reduction``.

    reduction welford_reduce x=10960 r=768 hint=inner reads=bf16,f32 writes=bf16 body=3f2a9c0d41b7e8

``x`` is the number of rows and ``r`` the number of elements of a row. A persistent kernel holds
whole rows; a looped kernel reads a row in steps. ``body`` is a hash of the operations on each
element, with their indices and sizes, and without the names of buffers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from warmup.core.phases import BuildStage
from warmup.core.rows import Family, Winner
from warmup.keys.kind import Kind, Problem

PERSISTENT: Final = Winner(Family.REDUCTION, "persistent")
LOOPED: Final = Winner(Family.REDUCTION, "looped")
REDUCTION: Final = Kind(
    name="reduction",
    pattern=re.compile(
        r"reduction [a-z][a-z0-9_+]* x=[0-9]+ r=[0-9]+ hint=[a-z_]+"
        r" reads=[a-z0-9_,]+ writes=[a-z0-9_,]+ body=[0-9a-f]{16}"
    ),
    words=("kind", "op"),
    fixed=2,
    families=frozenset({Family.REDUCTION}),
    nearest_by=("x", "r"),
    hooks="warmup.inductor.reduction:ReductionLoops",
    work="warmup.keys.work:reduction_work",
    hidden=frozenset({"reads", "writes", "body"}),
    summary="reductions",
    library_default="inductor's rule",
    stage=BuildStage.REDUCTIONS,
)
_BODY_DIGITS: Final = 16


@dataclass(frozen=True, kw_only=True)
class ReductionProblem(Problem):
    """A kernel that reduces ``x`` rows of ``r`` elements each.

    ``ops`` are the kinds of reduction in it, ``hint`` is inductor's word for how it goes through
    memory, ``reads`` and ``writes`` are dtypes of buffers, and ``body`` is a text of what is
    computed.
    """

    kind = REDUCTION

    ops: Iterable[str]
    x: int
    r: int
    hint: str
    reads: Iterable[str]
    writes: Iterable[str]
    body: str

    def _spell(self) -> str:
        digest = hashlib.sha256(self.body.encode()).hexdigest()[:_BODY_DIGITS]
        words = ["reduction", "+".join(self.ops), f"x={self.x}", f"r={self.r}", f"hint={self.hint}"]
        words += [f"reads={','.join(self.reads) or 'none'}"]
        words += [f"writes={','.join(self.writes) or 'none'}", f"body={digest}"]
        return " ".join(words)
