"""`sweep`: a store of rows without what nobody needs: damaged files, copies, unserved versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warmup.core.errors import StoreError
from warmup.table.codec import encode
from warmup.table.row_store.group_files import merge_files
from warmup.table.row_store.row_group import GROUP_FILE, GROUPS
from warmup.table.row_store.row_segment import MAX_SEGMENT_BYTES, RowSegment, salvage
from warmup.table.row_store.row_store import MARKER, MARKER_TEXT, RowStore
from warmup.table.row_store.served_versions import ServedVersions

DAMAGED_FOLDER: Final = "damaged"


@dataclass(frozen=True, slots=True)
class Swept:
    """What `sweep` did. ``rows`` stay, in ``files``; ``copies`` of equal rows are gone.

    ``unserved`` has the number of rows that were removed, by their group. ``set_aside`` are damaged
    files, which are in the folder ``damaged`` of the store now, and ``salvaged`` the rows that
    could be read of them. ``leftovers`` counts half-written files of killed writers.
    """

    rows: int
    files: int
    copies: int = 0
    unserved: tuple[tuple[str, int], ...] = ()
    set_aside: tuple[str, ...] = ()
    salvaged: int = 0
    leftovers: int = 0


def sweep(store: RowStore, served: ServedVersions) -> Swept:
    """Merge the files of each group of *store* into one, and remove what nobody needs.

    Rows that differ in anything are kept, conflicts included. With versions in *served*, rows of
    other versions are removed. A damaged file is set aside, never removed.

    Raises:
        StoreError: the place is no store, or cannot be read or written.
    """
    with store.files.locked():
        _mark(store)
        leftovers = store.files.remove_leftovers()
        kept = files = before = salvaged = 0
        unserved, set_aside = [], []
        for name in store.undescribed():
            _set_aside(store, name)
            store.files.remove(name)
            set_aside.append(name)
        for group in store.groups():
            found = store.load(group)
            damaged = found.damaged.keys()
            for name in damaged:
                found.segments |= _set_aside(store, name)
            set_aside += damaged
            count = sum(len(segment.lines) for segment in found.segments.values())
            if served.unserved(group.origin.provenance.runtime):
                unserved.append((group.name, count))
                for name in (*found.segments, *damaged, f"{GROUPS}/{group.name}/{GROUP_FILE}"):
                    store.files.remove(name)
                continue
            salvaged += sum(
                len(found.segments[name].lines) for name in damaged & found.segments.keys()
            )
            before += count
            description = encode(group.origin).encode("ascii")
            store.files.write(f"{GROUPS}/{group.name}/{GROUP_FILE}", description)
            written = merge_files(store.files, found, tuple(found.segments))
            for name in damaged - written:  # a file's name is the digest of what it should have
                store.files.remove(name)
            after = store.load(group)
            kept += sum(len(segment.lines) for segment in after.segments.values())
            files += len(after.segments)
        return Swept(
            kept, files, before - kept, tuple(unserved), tuple(set_aside), salvaged, leftovers
        )


def _set_aside(store: RowStore, name: str) -> dict[str, RowSegment]:
    """Copy the damaged file *name* aside; return what can be read of it, by that name."""
    content = store.files.read(name, MAX_SEGMENT_BYTES)
    if content is None:
        return {}
    store.files.write(f"{DAMAGED_FOLDER}/{name.rpartition('/')[2]}", content)
    segment = salvage(content)
    return {} if segment is None else {name: segment}


def _mark(store: RowStore) -> None:
    """Write the store's own file again where it is lost or damaged, and groups are there.

    Raises:
        StoreError: the place is no store, or a store of another version.
    """
    try:
        store.check_there()
    except StoreError:
        names = store.files.names()
        content = store.files.read(MARKER, MAX_SEGMENT_BYTES)
        is_newer = content is not None and b'"warmup rows"' in content and b"}" in content
        if is_newer or not any(name.startswith(f"{GROUPS}/") for name in names):
            raise
        store.files.write(MARKER, MARKER_TEXT.encode())
