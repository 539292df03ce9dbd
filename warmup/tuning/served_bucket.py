"""`ServedBucket`: what a compile of one bucket was answered with, and gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warmup.core.call_cost import CallCost


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBucket:
    """One bucket served from rows: the keys it asked for, and the outputs of its calls.

    ``keys`` are those with a row, each once, in graph order; ``missing`` those that no row answered
    and nothing measured. ``uncovered`` counts measurements that no row covers, by site. ``graphs``
    is the number of graphs that torch.compile made of the first call. ``is_same_shortened``: the
    model without its repeated layers asked for the same keys. ``cost`` is that of the first call,
    None where nothing measures it, and ``counts`` says how often the graphs asked for each key.
    ``differing`` are the keys for which inductor fused another way than their rows say.
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
