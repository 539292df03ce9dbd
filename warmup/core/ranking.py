"""`ranking_of`: the fastest candidates of a row as text; `ranked`: that text read again."""

from __future__ import annotations

from warmup.core.rows import Evidence, Scope, Tuned

MAX_RANKED = 10
_MAX_RANKED_NAME = 160


def ranking_of(tuned: Tuned) -> str:
    """Return the fastest candidates of *tuned* as the text of `Evidence.ranking`.

    They are those that were timed as the row was: ``10.5 triton::mm 64x64x32 w4; 12.1 aten::mm``.
    """
    is_fused = tuned.row.evidence.scope is Scope.FUSED
    timed = [
        (time_us, timing.winner.short[:_MAX_RANKED_NAME])
        for timing in tuned.timings
        if timing.rejection is None
        and (time_us := timing.fused_us if is_fused else timing.time_us) is not None
    ]
    return "; ".join(f"{time_us:.6g} {name}" for time_us, name in sorted(timed)[:MAX_RANKED])


def ranked(evidence: Evidence) -> tuple[tuple[float, str], ...]:
    """Return the time in microseconds and the name of each candidate in the ranking."""
    return _read_ranking(evidence.ranking)


def bare_ranked(evidence: Evidence) -> tuple[tuple[float, str], ...]:
    """Return what `ranked` does, of the times that did not decide about padding."""
    return _read_ranking(evidence.bare_ranking)


def _read_ranking(ranking: str) -> tuple[tuple[float, str], ...]:
    entries = (entry.partition(" ") for entry in ranking.split("; ") if entry)
    return tuple((float(time_us), name) for time_us, _, name in entries)
