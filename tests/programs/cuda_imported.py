"""Serve and search with an imported config on the stated H100; print, as JSON, what inductor made.

    echo '{"op": "addmm", "m": 1376, "n": 768, "k": 3072, "on_miss": "unverified",
        "imported": {"BLOCK_M": 64, ...}}' | python cuda_imported.py

One case a line on stdin, one result a line on stdout; cases as for cuda_lowering.py. ``search``
says that the case is tuned. ``imported`` has the kwargs of inductor's ``mm`` template: the imported
config of every key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# First, since it pretends the device before inductor looks for one.
from cuda_lowering import OPTIONS, answer_each, lower
from cuda_search import Silent

from warmup.core.events import Emitter, Event
from warmup.core.imported_config import ImportedConfig
from warmup.core.method import Search
from warmup.core.rows import Family, Winner
from warmup.inductor import connect
from warmup.table.imported_answers import ImportedAnswers
from warmup.table.lookup import Lookup, OnMiss


@dataclass(frozen=True)
class AnyKey:
    """The one imported config, for every key."""

    config: ImportedConfig

    def __getitem__(self, _key: str) -> tuple[ImportedConfig, ...]:
        return (self.config,)

    def __contains__(self, _key: str) -> bool:
        return True

    def __len__(self) -> int:
        return 1

    def get(self, key: str, _default: Any) -> tuple[ImportedConfig, ...]:
        return self[key]


def imported_of(case: dict[str, Any]) -> ImportedAnswers:
    """Return the imported config that *case* describes, for every key."""
    winner = Winner(Family.TEMPLATE, "triton::mm", tuple(case["imported"].items()))
    return ImportedAnswers(AnyKey(ImportedConfig(winner, "a.log:1")))  # type: ignore[arg-type]  # what is asked of it


def answer(case: dict[str, Any], generated: list[str]) -> dict[str, Any]:
    """Lower one case without rows, and return what came of it."""
    events: list[Event] = []
    tuner = Silent()
    is_search = "search" in case
    lookup = Lookup(
        {},
        OnMiss.TUNE if is_search else OnMiss(case["on_miss"]),
        Emitter([events.append]),
        tuner=tuner if is_search else None,
        search=Search(case.get("search", "default")),
        imported=imported_of(case),
    )
    generated.clear()
    attachment = connect().attach(lookup, OPTIONS, "test", quiet=True)
    try:
        code, _ = lower({"winner": "none", **case})
    finally:
        attachment.detach()
    result: dict[str, Any] = {
        "generated": list(generated),
        "library": code.count("extern_kernels."),
        "events": [{"name": event.name, **event.fields} for event in events],
    }
    if is_search:
        (question,) = tuner.questions
        assert question.searched is not None
        result |= {
            "search": question.searched.search,
            "tried": question.searched.tried,
            "left_out": question.searched.left_out,
            "candidates": [str(one.winner.uid) for one in question.candidates],
            "configs": [one.winner.short for one in question.candidates],
        }
    return result


if __name__ == "__main__":
    answer_each(answer)
