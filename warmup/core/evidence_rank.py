"""`evidence_rank`: which of two rows for one key was measured better."""

from __future__ import annotations

from typing import Final

from warmup.core.rows import Evidence, Flag

EvidenceRank = tuple[bool, bool, int, float, float]

# Of a share of the peaks that is hard to believe.
SHARE_FLAGS: Final = (Flag.OVER_PEAK, Flag.FAR_BELOW_PEAK)


def evidence_rank(evidence: Evidence, near_tie: float) -> EvidenceRank:
    """Return the sort key of *evidence*: of two rows for one key the better measured is less.

    A stable row is before an unstable one, then a row with a time of the library default before one
    without, and a row whose share of the peaks can be believed before one that is flagged. Then the
    smaller spread wins, where spreads up to *near_tie* count as equal, and last the shorter time.
    """
    return (
        evidence.is_unstable,
        evidence.library_us is None,
        len(set(SHARE_FLAGS).intersection(evidence.flags)),
        max(evidence.spread or 0.0, near_tie),
        evidence.time_us,
    )
