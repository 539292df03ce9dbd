"""Row kinds ``reduction`` and ``split``: how a kernel reduces rows, and in how many parts.

    reduction welford_reduce x=10960 r=768 hint=inner reads=bf16,f32 writes=bf16 body=3f2a9c0d41b7e8

``x`` is the number of rows and ``r`` the number of elements of a row. A persistent kernel holds
whole rows; a looped kernel reads a row in steps. ``body`` is a hash of the operations on each
element, with their indices and sizes, and without the names of buffers.

    split sum x=8 r=1048576 f32 out=f32 reads=bf16 hint=inner rule=128 input=once

is a reduction of few long rows, made in one kernel or in parts. Elements are read as ``reads`` and
reduced in the dtype before ``out``. ``rule`` is the number of parts by inductor's own rule, which
depends on the device. ``input=again``: what follows the reduction reads the rows once more, as a
norm does, which a kernel for whole rows can do too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from warmup.core.phases import BuildStage
from warmup.core.roofline import PASSES, Work, item_bytes
from warmup.core.rows import Family, Winner
from warmup.keys.kind import Kind, Problem

PERSISTENT: Final = Winner(Family.REDUCTION, "persistent")
LOOPED: Final = Winner(Family.REDUCTION, "looped")
_REGION_STEPS: Final = 64  # warmup/inductor/gemm/regions.py


def _sizes_of(dtypes: str) -> list[int]:
    return [item_bytes(dtype) for dtype in dtypes.split(",") if dtype != "none"]


def _work(ingredients: Mapping[str, str]) -> Work | None:
    # A range of rows is rounded up to a power of two. At least one of the buffers that are read has
    # all elements, and at most all buffers have them.
    reads, writes = (_sizes_of(ingredients[name]) for name in ("reads", "writes"))
    if not reads:
        return None
    x, r = int(ingredients["x"]), int(ingredients["r"])
    most = PASSES * x * r * (sum(reads) + sum(writes))
    return Work("", None, (x // 2 + 1) * r * min(reads), most_moved=most)


def _split_work(ingredients: Mapping[str, str]) -> Work | None:
    # What is timed is the region around the reduction, whose operators may each read and write the
    # elements once more.
    reads = _sizes_of(ingredients["reads"])
    if not reads:
        return None
    elements = int(ingredients["x"]) * int(ingredients["r"])
    most = _REGION_STEPS * PASSES * elements * max(*reads, item_bytes(ingredients["dtype"]))
    return Work("", None, elements * sum(reads), most_moved=most)


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
    work=_work,
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
    work=_split_work,
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
