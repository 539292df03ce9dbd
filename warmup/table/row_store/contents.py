"""`contents_of`: what a store of rows has, by group."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from warmup.core.runtime import Runtime
from warmup.table.row_store.group_files import GroupFiles
from warmup.table.row_store.row_group import read_origin
from warmup.table.row_store.row_store import RowStore


@dataclass(frozen=True, slots=True)
class GroupContents:
    """The rows of one device class, versions and policy.

    ``runtime`` is that of the first table. ``rows`` counts all rows, ``keys`` those with any, and
    ``conflicts`` the keys with several winners. ``templates`` counts the template sources among the
    winners. ``files`` are row files with ``size`` bytes, ``damaged`` what is wrong with others.
    ``oldest`` and ``newest`` are the times of the tables that the rows came from.
    """

    name: str
    runtime: str
    mode: str
    rows: int
    keys: int
    conflicts: int
    templates: int
    files: int
    size: int
    oldest: str
    newest: str
    damaged: tuple[str, ...] = ()


def contents_of(store: RowStore) -> list[GroupContents]:
    """Return what each group of *store* has, by name.

    Raises:
        StoreError: there is no store, or it cannot be read.
    """
    return [_contents(found, store.location) for found in store.load_all()]


def runtime_of(found: GroupFiles) -> Runtime:
    """Return the device and the versions of the group *found*."""
    return found.group.origin.provenance.runtime


def _contents(found: GroupFiles, path: str) -> GroupContents:
    winners: dict[bytes, set[bytes]] = defaultdict(set)
    rows: set[bytes] = set()
    origins: dict[bytes, bytes] = {}
    for segment in found.segments.values():
        origins.update(segment.origins)
        for line in segment.lines:
            content = line[:-17]
            rows.add(content)
            winners[line.partition(b"\t")[0]].add(content[content.rfind(b'"winner":') :])
    sources = {
        text[at + 15 : text.index(b'"', at + 15)]
        for each in winners.values()
        for text in each
        if (at := text.find(b'"source_hash":"')) >= 0
    }
    times = sorted(read_origin(text, path).provenance.created for text in origins.values())
    return GroupContents(
        name=found.group.name,
        runtime=str(runtime_of(found)),
        mode=found.group.origin.policy.mode,
        rows=len(rows),
        keys=len(winners),
        conflicts=sum(len(each) > 1 for each in winners.values()),
        templates=len(sources),
        files=len(found.segments),
        size=sum(found.sizes.values()),
        oldest=times[0] if times else "",
        newest=times[-1] if times else "",
        damaged=tuple(str(error) for error in found.damaged.values()),
    )
