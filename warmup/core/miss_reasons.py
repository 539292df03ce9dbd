"""`MissReason`: why no row answered a question, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class MissReason(StrEnum):
    """Why no row answered. A closed list: renaming a reason bumps the event schema."""

    NOT_IN_TABLE = "not_in_table"
    """The table has no row for this key."""
    DYNAMIC_DIM = "dynamic_dim"
    """A size is a range, and no row has the same ranges."""
    WRONG_DEVICE = "wrong_device"
    """The table is for another device."""
    WRONG_RUNTIME = "wrong_runtime"
    """Another minor version of torch, or of Triton on a GPU, runs here."""
    TEMPLATE_ABSENT = "template_absent"
    """A row exists, but this torch does not offer its choice here."""
    TEMPLATE_CHANGED = "template_changed"
    """The template's source or parameters, or the arguments of a launch, are not those of the row.
    """
    CHOICE_REJECTED = "choice_rejected"
    """The row's parameters cannot be used here, or do not compile."""
    NOT_DESCRIBED = "not_described"
    """The problem cannot be written as a key, for example because a size depends on data."""
    CACHED_MISS = "cached_miss"
    """A cached graph was compiled with misses; in strict serving only."""
    UNTRUSTED = "untrusted"
    """A row exists, but a build found an output wrong with its winner."""
    INTERNAL = "internal"
    """Code of warmup raised an exception; torch's own code ran as without a table."""

    @property
    def advice(self) -> str:
        """What to do about a miss for this reason, in one clause."""
        return _ADVICE[self]


_ADVICE: Final = {
    MissReason.NOT_IN_TABLE: "build this bucket, or pad to one that was built",
    MissReason.DYNAMIC_DIM: (
        "compile with dynamic=False, or build for the range: --policy range with --model, or a "
        "program that calls the range, build -- PROGRAM"
    ),
    MissReason.WRONG_DEVICE: "build on this device (on a CPU with the same number of threads)",
    MissReason.WRONG_RUNTIME: "build with the versions of torch and Triton that serve",
    MissReason.TEMPLATE_ABSENT: "build again with this torch, without inductor options of your own",
    MissReason.TEMPLATE_CHANGED: "build again with this torch",
    MissReason.CHOICE_REJECTED: "build again on this machine",
    MissReason.NOT_DESCRIBED: "no table can answer it: look at the model",
    MissReason.UNTRUSTED: "build again: the key is measured without the winner that was wrong",
    MissReason.INTERNAL: "report it, with the traceback that WARMUP_DEBUG=1 prints",
    MissReason.CACHED_MISS: "build the bucket, or empty inductor's cache folder",
}


def advice(reasons: Iterable[str]) -> list[str]:
    """Return ``REASON: what to do`` for each of *reasons* that is known, in their order."""
    known = {reason.value for reason in MissReason}
    return [f"{reason}: {MissReason(reason).advice}" for reason in reasons if reason in known]
