"""The phases of a start as a table: a row for each phase, a column for each part of the start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from warmup.buckets.bucket import Bucket
from warmup.cli.output import ABSENT, TEXT_WIDTH, grid
from warmup.core.phases import PhaseSeconds, added

PHASES_PAGE: Final = "docs/explanation/start.md"
_GAP: Final = 2


def columns_by_bucket(
    before: PhaseSeconds, buckets: Sequence[tuple[Bucket, PhaseSeconds]]
) -> dict[str, PhaseSeconds]:
    """Return the phases of a whole start, before its first bucket, and of each bucket, by name."""
    by_bucket = {str(bucket): phases for bucket, phases in buckets}
    return {"all": added((before, *by_bucket.values())), "before": before, **by_bucket}


def phase_grid(columns: Mapping[str, PhaseSeconds], indent: int = 0) -> Iterator[str]:
    """Yield a row of seconds for each phase of *columns*, then the sums, indented by *indent*.

    Columns that have no room within 80 columns of text follow in another table below. A phase that
    a column did not enter has a dash there.
    """
    phases = list(added(columns.values()))
    labels = ["seconds", *(phase.label for phase in phases), "all"]
    room = TEXT_WIDTH - indent - max(map(len, labels))
    table: list[list[str]] = []
    for name, seconds in columns.items():
        cells = [f"{seconds[phase]:.2f}" if phase in seconds else ABSENT for phase in phases]
        column = [name, *cells, f"{sum(seconds.values()):.2f}"]
        width = _GAP + max(map(len, column))
        if table and room < width:
            yield from _spell(labels, table, indent)
            yield ""
            table, room = [], TEXT_WIDTH - indent - max(map(len, labels))
        table.append(column)
        room -= width
    yield from _spell(labels, table, indent)


def _spell(labels: Sequence[str], table: Sequence[Sequence[str]], indent: int) -> Iterator[str]:
    head, *rows = zip(labels, *table, strict=True)
    for line in grid(head, rows, texts=1, gap=_GAP):
        yield " " * indent + line
