"""`GroupFiles`: the files of one group of a store as they were read; and how they are merged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from warmup.core.errors import StoreError
from warmup.table.row_store.row_group import GROUPS, RowGroup
from warmup.table.row_store.row_segment import RowSegment, write_segments
from warmup.table.row_store.store_files import StoreFiles


@dataclass(slots=True)
class GroupFiles:
    """The files of one group as they were read: the segments by name, and those not readable."""

    group: RowGroup
    segments: dict[str, RowSegment] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    damaged: dict[str, StoreError] = field(default_factory=dict)


def merge_files(files: StoreFiles, found: GroupFiles, names: Iterable[str]) -> set[str]:
    """Write the rows of *names*, files of the group *found*, into one file and remove these.

    Of rows that are equal to the last letter one stays. Each file is removed after its rows are
    written; those that are written are returned, and may have the name of a damaged file.

    Raises:
        StoreError: a file cannot be written; every row is still there.
    """
    merged = list(names)
    origins = {key: text for name in merged for key, text in found.segments[name].origins.items()}
    rows: dict[bytes, bytes] = {}
    for name in merged:
        for line in found.segments[name].lines:
            content = line[: -len(b"\t") - 16]
            rows[content] = min(line, rows.get(content, line))
    written = set()
    for name, content in write_segments(rows.values(), origins):
        path = f"{GROUPS}/{found.group.name}/{name}"
        written.add(path)
        if path not in found.segments or path in found.damaged:
            files.write(path, content)
    for name in merged:
        if name not in written:
            files.remove(name)
    return written
