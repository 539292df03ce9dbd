"""What a guard is for: a hard limit, inductor's heuristic, or the model's own code.

Guards are told apart by the source that asked, and where nothing is known of it, that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmup.inductor.guard import Guard, SourceLine


class CauseKind(StrEnum):
    """What stands behind a guard."""

    LIMIT = "limit"
    HEURISTIC = "heuristic"
    MODEL = "model"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a range ends: the guard, where torch asked, where the model stood, and a sentence."""

    kind: CauseKind
    sentence: str
    expression: str
    place: SourceLine | None
    user: SourceLine | None


_INT32: Final = 2**31 - 1
_ASKS_BOUND: Final = (
    "to see if padding a product may pay, inductor asks whether it is bound by compute, and "
    "compares its sizes; in the backward of a Linear this dim is the one summed over"
)
_ASKS_PADDING: Final = (
    "to see if padding a product may pay, inductor weighs its operations against the bytes that it "
    "moves"
)
_TMA: Final = (
    "to list a persistent TMA template, which triton.enable_persistent_tma_matmul switches on, "
    "inductor fixes what it looks at, whichever candidate wins"
)
_KERNEL: Final = "inductor looks at this size to choose how a kernel is written"
_LOWERING: Final = "inductor looks at this size to choose how an operation is computed"
_REWRITE: Final = "a pass of inductor looks at this size to decide how to rewrite the graph"
_BY_MODEL: Final = "the model's own code depends on this size"
_SHAPES: Final = "an operation of the model is only defined for sizes like these"
_SMALL: Final = (
    "sizes 0 and 1 are always compiled on their own (0/1 specialisation); torch takes a dynamic "
    "size to be 2 or more"
)
_INDEX: Final = "indices of 32 bits reach no further; beyond, kernels need 64 bits"
_ONE_SIZE: Final = (
    "dynamo compiled this graph for one size: the dim reached it unmarked, as it does behind a "
    "graph break, until another size is seen"
)
_UNKNOWN: Final = "torch compares this size here; warmup does not know what for"
# The beginning of a path, a function or none, what it is for. The first that fits counts.
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
    """Return what *guard* is for."""
    kind, sentence = _judge(guard)
    return Cause(kind, sentence, guard.expression, guard.place, guard.user)


def first_cause(guards: Sequence[Guard]) -> Cause | None:
    """Return the cause of the first of *guards* that something is known of, None without any."""
    causes = [cause_of(guard) for guard in guards]
    known = (cause for cause in causes if cause.kind is not CauseKind.UNKNOWN)
    return next(known, causes[0] if causes else None)


def _judge(guard: Guard) -> tuple[CauseKind, str]:
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
