"""`Cause`: why a guard exists. A limit of torch, a heuristic of inductor, or the model's own code.

The cause follows from the source line in torch that compared the size; for lines that are not
listed here it is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmup.inductor.guard import Guard, SourceLine


class CauseKind(StrEnum):
    """Why a guard exists."""

    LIMIT = "limit"
    HEURISTIC = "heuristic"
    MODEL = "model"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a range ends: a sentence and the guard's expression.

    ``place`` is the line in torch that compared the size, ``user`` the line of the model.
    """

    kind: CauseKind
    sentence: str
    expression: str
    place: SourceLine | None
    user: SourceLine | None


_INT32: Final = 2**31 - 1
_ASKS_BOUND: Final = (
    "to decide if padding a matmul may pay, inductor compares its sizes to see whether it is bound "
    "by compute; in the backward of a Linear this dim is the inner one"
)
_ASKS_PADDING: Final = (
    "to decide if padding a matmul may pay, inductor compares its operations with the bytes that "
    "it moves"
)
_TMA: Final = (
    "to list a persistent TMA template (triton.enable_persistent_tma_matmul), inductor guards the "
    "sizes that it checks, whichever candidate wins"
)
_KERNEL: Final = "inductor looks at this size to choose how a kernel is written"
_LOWERING: Final = "inductor looks at this size to choose how an operation is computed"
_REWRITE: Final = "a pass of inductor looks at this size to decide how to rewrite the graph"
_BY_MODEL: Final = "the model's own code depends on this size"
_SHAPES: Final = "an operation of the model is defined for these sizes only"
_SMALL: Final = (
    "sizes 0 and 1 are always compiled on their own (0/1 specialisation); torch takes a dynamic "
    "size to be 2 or more"
)
_INDEX: Final = "32-bit indices end here; larger sizes need kernels with 64-bit indices"
_ONE_SIZE: Final = (
    "dynamo compiled this graph for one size: the dim reached it unmarked, as it does behind a "
    "graph break, until another size is seen"
)
_UNKNOWN: Final = "torch compares this size here; warmup does not know why"
# The beginning of a path, a function or empty for any, and the cause. The first match counts.
_KNOWN: Final = (
    (
        "torch/_inductor/fx_passes/pad_mm.py",
        "is_mm_compute_bound",
        CauseKind.HEURISTIC,
        _ASKS_BOUND,
    ),
    ("torch/_inductor/fx_passes/pad_mm.py", "", CauseKind.HEURISTIC, _ASKS_PADDING),
    ("torch/_inductor/utils.py", "use_triton_tma_template", CauseKind.HEURISTIC, _TMA),
    ("torch/_inductor/utils.py", "can_use_tma", CauseKind.HEURISTIC, _TMA),
    ("torch/_inductor/fx_passes/", "", CauseKind.HEURISTIC, _REWRITE),
    ("torch/_inductor/codegen/", "", CauseKind.HEURISTIC, _KERNEL),
    ("torch/_inductor/", "", CauseKind.HEURISTIC, _LOWERING),
    ("torch/_dynamo/", "", CauseKind.MODEL, _BY_MODEL),
    ("torch/_refs/", "", CauseKind.LIMIT, _SHAPES),
    ("torch/_prims_common/", "", CauseKind.LIMIT, _SHAPES),
    ("torch/_meta_registrations.py", "", CauseKind.LIMIT, _SHAPES),
    ("torch/_subclasses/", "", CauseKind.LIMIT, _SHAPES),
)


def cause_of(guard: Guard) -> Cause:
    """Return the cause of *guard*."""
    kind, sentence = _classify(guard)
    return Cause(kind, sentence, guard.expression, guard.place, guard.user)


def first_cause(guards: Sequence[Guard]) -> Cause | None:
    """Return the first known cause of *guards*, else the first cause, None without guards."""
    causes = [cause_of(guard) for guard in guards]
    known = (cause for cause in causes if cause.kind is not CauseKind.UNKNOWN)
    return next(known, causes[0] if causes else None)


def _classify(guard: Guard) -> tuple[CauseKind, str]:
    if guard.is_default:
        return CauseKind.LIMIT, _SMALL
    if str(_INT32) in guard.expression or str(_INT32 + 1) in guard.expression:
        return CauseKind.LIMIT, _INDEX
    if guard.place is None:
        return CauseKind.UNKNOWN, _ONE_SIZE if guard.is_fixed else _UNKNOWN
    path, function = guard.place.path, guard.place.function
    for beginning, name, kind, sentence in _KNOWN:
        if path.startswith(beginning) and name in ("", function):
            return kind, sentence
    if not path.startswith("torch/"):
        return CauseKind.MODEL, _BY_MODEL
    return CauseKind.UNKNOWN, _UNKNOWN
