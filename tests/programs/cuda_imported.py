"""Search with a given config on the stated H100; print, as JSON, what inductor made.

    echo '{"op": "addmm", "m": 1376, "n": 768, "k": 3072, "search": "imported",
        "imported": {"BLOCK_M": 64, ...}}' | python cuda_imported.py

One case a line on stdin, one result a line on stdout; cases as for cuda_lowering.py. ``imported``
has the kwargs of inductor's ``mm`` template, which are measured for every key.
"""

from __future__ import annotations

from typing import Any

# First, since it pretends the device before inductor looks for one.
from cuda_lowering import OPTIONS, answer_each, lower
from cuda_search import Silent

from warmup.core.events import Emitter, Event
from warmup.core.method import Search
from warmup.core.rows import Family, Winner
from warmup.inductor import connect
from warmup.keys.kind import Problem
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss


class Importing(Lookup):
    """A lookup with the configs to measure for every key."""

    configs: tuple[Winner, ...] = ()

    def neighbours(self, _problem: Problem) -> tuple[Winner, ...]:
        return self.configs


def answer(case: dict[str, Any], generated: list[str]) -> dict[str, Any]:
    """Lower one case without rows, and return what came of it."""
    events: list[Event] = []
    tuner = Silent()
    lookup = Importing(
        {}, OnMiss.FALLBACK, Emitter([events.append]), tuner=tuner, search=Search(case["search"])
    )
    lookup.configs = (Winner(Family.TEMPLATE, "triton::mm", tuple(case["imported"].items())),)
    generated.clear()
    attachment = connect().attach(lookup, OPTIONS, "test", quiet=True)
    try:
        code, _ = lower({"winner": "none", **case})
    finally:
        attachment.detach()
    (question,) = tuner.questions
    assert question.searched is not None
    return {
        "generated": list(generated),
        "library": code.count("extern_kernels."),
        "events": [{"name": event.name, **event.fields} for event in events],
        "search": question.searched.search,
        "tried": question.searched.tried,
        "left_out": question.searched.left_out,
        "candidates": [str(one.winner.uid) for one in question.candidates],
        "configs": [one.winner.short for one in question.candidates],
    }


if __name__ == "__main__":
    answer_each(answer)
