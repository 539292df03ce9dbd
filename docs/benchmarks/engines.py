"""Fields of the benchmark page about engines: starts of vLLM, and of the pieces it compiles."""

from __future__ import annotations

from template import Documents, Row, each


def piece_starts(documents: Documents) -> list[Row]:
    """Return the starts of each document, with what they printed as cells."""
    return [_cells(start) for start in each(documents, "starts")]


def _cells(start: Row) -> Row:
    compiled = sum(start["compile_s"].values()) if "compile_s" in start else None
    misses = sum(start["misses"].values()) if "misses" in start else None
    ended = "ended by the limit" if start["exit_code"] < 0 else "yes"
    error = max(start["error"].values()) if "error" in start else None
    return {**start, "compiled": compiled, "missed": misses, "ended": ended, "apart": error}


def compiling(documents: Documents) -> Row:
    """Return the seconds in which each start compiled the pieces, by its name."""
    return {start["start"]: start["compiled"] for start in piece_starts(documents)}


def shorter(documents: Documents) -> float:
    """Return how many times shorter the pieces compile from the table than tuned online."""
    seconds = compiling(documents)
    return float(seconds["online"] / seconds["table"])


def engine_starts(documents: Documents) -> list[Row]:
    """Return the starts of vLLM, with the sum of their misses."""
    return [
        {**start, "missed": sum(start["misses"].values())} for start in each(documents, "starts")
    ]
