"""`Disagreements`: what inductor does otherwise than a table says, each reported once."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from warmup.core.counted import counted
from warmup.core.errors import ContradictionWarning
from warmup.core.events import Emitter, EventName
from warmup.core.notices import warn

_FUSION_WORDS: Final = {True: "fused", False: "not fused"}
_FUSION_ADVICE: Final = "build again, so that the row is measured in this model"
_GRAPHS_ADVICE: Final = "build a table with --launch cudagraph"
_SET_BY_CALLER: Final = "remove the setting while the table is installed"


@dataclass
class Disagreements:
    """Reports an option, or the fusion of a key, the first time that it differs from the table.

    ``fusions`` are the keys for which inductor fused another way than their rows say. With
    ``settles`` they are kept and not reported: whoever compiles chooses other winners for them.
    """

    emitter: Emitter
    settles: bool = False
    fusions: dict[str, None] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note_fusion(self, key: str, *, expected: bool, found: bool) -> None:
        """Keep *key* where inductor fused another way than expected, and warn of it."""
        if expected == found:
            return
        with self._lock:
            self.fusions[key] = None
        if self.settles:
            return
        row_says, done = _FUSION_WORDS[expected], _FUSION_WORDS[found]
        self._contradict(
            *(f"fusion of {key}", row_says, done),
            f"{key}: the row was measured {row_says}, and here inductor compiled the GEMM "
            f"{done}: another kernel runs than was measured; {_FUSION_ADVICE}",
        )

    def note_option(self, option: str, expected: str, found: str, advice: str = "") -> None:
        """Warn that inductor's *option* is *found*, where the table was built with *expected*."""
        self._contradict(
            *(option, expected, found),
            f"inductor option {option} is {found} here, the table was built with {expected}: "
            f"inductor may not ask for its rows or not use them; {advice or _SET_BY_CALLER}",
        )

    def note_graphs(self, rows: int) -> None:
        """Warn that CUDA graphs are recorded, for which other winners than those of *rows* win."""
        if not rows:
            return
        self._contradict(
            *("launch", "one by one", "CUDA graphs"),
            f"inductor records CUDA graphs here, and {counted(rows, 'row')} of the table "
            f"{'has' if rows == 1 else 'have'} the winner that the host launches fastest, which "
            f"another candidate beats on the device; {_GRAPHS_ADVICE}",
        )

    def note_overruling(self, option: str, wanted: str, found: str) -> None:
        """Emit that the caller's value *found* of *option* was replaced by the table's."""
        if self._is_first_report(option):
            self.emitter.emit(EventName.OVERRULED, option=option, table=wanted, found=found)

    def _contradict(self, option: str, expected: str, found: str, message: str) -> None:
        if self._is_first_report(option):
            self.emitter.emit(EventName.CONTRADICTED, option=option, expected=expected, found=found)
            warn(ContradictionWarning(message))

    def _is_first_report(self, option: str) -> bool:
        """Return whether *option* was never reported before, and note that it is now."""
        with self._lock:
            is_first = option not in self._reported
            self._reported.add(option)
        return is_first
