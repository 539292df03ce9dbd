"""`SplitProblem`: a reduction of few long rows, made in one kernel or in parts; row kind ``split``.

    split sum x=8 r=1048576 f32 out=f32 reads=bf16 hint=inner rule=128 input=once

``x`` is the number of rows and ``r`` the number of elements of a row. Elements are read as
``reads`` and reduced in the dtype before ``out``. ``rule`` is the number of parts by inductor's own
rule, which depends on the device. ``input=again``: what follows the reduction reads the rows once
more, as a norm does, which a kernel for whole rows can do too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from warmup.core.rows import Family, Winner
from warmup.keys.kind import Kind, Problem

SPLIT: Final = Kind(
    name="split",
    pattern=re.compile(
        r"split [a-z][a-z0-9_]* x=[0-9]+ r=[0-9]+ [a-z0-9_]+ out=[a-z0-9_]+"
        r" reads=[a-z0-9_,]+ hint=[a-z_]+ rule=[0-9]+ input=(?:once|again)"
    ),
    words=("kind", "op", "dtype"),
    fixed=2,
    families=frozenset({Family.REDUCTION}),
    nearest_by=("x", "r"),
    hooks="warmup.inductor.reduction:ReductionSplits",
    work="warmup.keys.work:split_work",
    hidden=frozenset({"reads", "rule"}),
    summary="split reductions",
    library_default="inductor's rule",
)
_UID: Final = "split"
_PARTS: Final = "parts"
_TRIED_TIMES_RULE: Final = (0.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class SplitProblem(Problem):
    """A reduction of ``x`` rows of ``r`` elements that inductor's rule splits into ``rule`` parts.

    ``op`` is inductor's kind of reduction, from ``dtype`` to ``out``; ``reads`` are the dtypes of
    the rows in memory. ``hint`` is inductor's word for how the reduction goes through memory, and
    ``is_read_again`` says whether what follows reads the rows once more.
    """

    kind = SPLIT

    op: str
    x: int
    r: int
    dtype: str
    out: str
    reads: Iterable[str]
    hint: str
    rule: int
    is_read_again: bool

    def _spell(self) -> str:
        words = ["split", self.op, f"x={self.x}", f"r={self.r}", self.dtype, f"out={self.out}"]
        words += [f"reads={','.join(self.reads) or 'none'}"]
        words += [f"hint={self.hint}", f"rule={self.rule}"]
        words += [f"input={'again' if self.is_read_again else 'once'}"]
        return " ".join(words)

    @property
    def variants(self) -> tuple[Winner, ...]:
        """What a build tries: inductor's rule first, not split, and half and twice the parts."""
        counts = [self.rule, 1, *(int(self.rule * times) for times in _TRIED_TIMES_RULE)]
        return tuple(split_into(n) for n in dict.fromkeys(counts) if 1 <= n <= self.r // 2)


def split_into(parts: int) -> Winner:
    """Return the winner that makes a reduction in *parts*; 1 is a reduction that is not split."""
    return Winner(Family.REDUCTION, _UID, ((_PARTS, parts),))


def parts_of(winner: Winner, r: int) -> int | None:
    """Return the parts that *winner* says for rows of *r* elements; None where it can say none."""
    parts = dict(winner.kwargs).get(_PARTS)
    is_valid = winner.uid == _UID and type(parts) is int and 1 <= parts <= r // 2
    return parts if is_valid and isinstance(parts, int) else None
