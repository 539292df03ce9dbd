"""`ServedBucket`: what a compile of one bucket was answered with, and gave.

`AskedQuestions` notes what it asked while it is under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warmup.core.call_cost import CallCost
from warmup.core.events import Event, EventName
from warmup.core.miss_reasons import MissReason
from warmup.core.uncompiled import NONE_UNCOMPILED, Uncompiled, frame_in


@dataclass(slots=True)
class AskedQuestions:
    """What a compile asked: how often for each key that was answered, in graph order.

    ``missing`` are the keys that no row answered and nothing measured, ``faults`` exceptions of
    warmup's own, and ``uncovered`` counts decisions that no row covers, by site. ``frames`` ran
    uncompiled, and ``matmuls_outside`` is how many matmuls ran outside any graph then. ``cost`` is
    that of a call.
    """

    keys: Counter[str] = field(default_factory=Counter)
    missing: dict[str, None] = field(default_factory=dict)
    faults: dict[str, None] = field(default_factory=dict)
    uncovered: Counter[str] = field(default_factory=Counter)
    frames: dict[str, None] = field(default_factory=dict)
    matmuls_outside: int = 0
    cost: CallCost | None = None

    def note(self, event: Event) -> None:
        """Count *event*, where it is about a question of inductor's."""
        if event.name in (EventName.HIT, EventName.TUNED):
            self.keys[str(event.fields["key"])] += 1
        elif event.name is EventName.MISSED:
            is_fault = event.fields["reason"] == MissReason.INTERNAL
            noted = self.faults if is_fault else self.missing
            noted[str(event.fields["key"])] = None
        elif event.name is EventName.UNCOVERED:
            self.uncovered[str(event.fields["site"])] += 1
        elif (frame := frame_in(event)) is not None:
            self.frames[frame] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBucket:
    """One bucket served from rows: the keys it asked for, and the outputs of its calls.

    ``keys`` are those with a row, each once, in graph order; ``missing`` those that no row answered
    and nothing measured. ``uncovered`` counts measurements that no row covers, by site. ``graphs``
    is the number of graphs that torch.compile made of the first call. ``is_same_shortened``: the
    model without its repeated layers asked for the same keys. ``cost`` is that of the first call,
    None where nothing measures it, and ``counts`` says how often the graphs asked for each key.
    ``differing`` are the keys for which inductor fused another way than their rows say.
    ``uncompiled`` is what ran outside of graphs.
    """

    keys: tuple[str, ...]
    outputs: list[Any]
    uncovered: Mapping[str, int]
    is_same_shortened: bool = False
    missing: tuple[str, ...] = ()
    graphs: int = 1
    cost: CallCost | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    differing: tuple[str, ...] = ()
    uncompiled: Uncompiled = NONE_UNCOMPILED
