"""`cache_tag`: how a table is named in inductor's cache keys and in compiled graphs."""

from __future__ import annotations

from typing import Final

_TAG_PREFIX: Final = "warmup-"


def cache_tag(digest: str, *, tunes: bool = False) -> str:
    """Return the tag of inductor's cache keys and compiled graphs for the table with *digest*.

    Strict and fallback share a tag: a cached graph carries its misses, which strict refuses.
    """
    return f"{_TAG_PREFIX}{digest[:32]}{'-tune' if tunes else ''}"


def shown_tag(tag: str) -> str:
    """Return the digest in *tag*, as short as events have digests, with what follows it."""
    digest, dash, rest = tag.removeprefix(_TAG_PREFIX).partition("-")
    return f"{digest[:16]}{dash}{rest}"
