"""`counted`: a number with its noun, for people."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return *count* and *noun*, in the plural unless there is one: ``2 rows``, ``1 miss``."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}{'es' if noun.endswith('s') else 's'}"
