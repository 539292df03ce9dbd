"""`RowGroup`: the rows of a store that may stand in one table, and the address of a row.

Rows share a table where device class, torch minor, on a GPU Triton minor, and the policy are equal.
Within a group a row has its key and the source of its winner's template; together that is its
address. Rows with one address are conflicts where their winners differ, and all are kept.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Final

from warmup.core.rows import Row
from warmup.core.runtime import minor_of
from warmup.table.canonical import compact
from warmup.table.codec import decode, digest_of, encode
from warmup.table.encoding import policy_to_json
from warmup.table.schema import Table
from warmup.table.store import origin_differences

GROUP_FILE: Final = "group.json"
GROUPS: Final = "groups"
_HARD_DEVICE: Final = ("type", "vendor", "arch", "sm_count", "memory_gib", "mig", "threads")
_UNSAFE: Final = re.compile(r"[^a-z0-9.]+")
_MOST_SLUG: Final = 60


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The group *name*; ``origin`` is a table without rows, of the rows that were added first."""

    name: str
    origin: Table

    def fits(self, like: Table) -> bool:
        """Return whether rows of this group may stand in the table *like*."""
        return not origin_differences(self.origin, like.provenance.runtime, like.policy)


def without_rows(table: Table) -> Table:
    """Return where and how the rows of *table* were measured, as a table without rows."""
    provenance = replace(table.provenance, assumptions=(), calls=())
    return Table(provenance, table.policy)


def group_of(table: Table) -> RowGroup:
    """Return the group for the rows of *table*, as the first table of it makes it."""
    runtime = table.provenance.runtime
    device = runtime.device
    on_cpu = device.type == "cpu"
    facts = {name: getattr(device, name) for name in _HARD_DEVICE}
    facts |= {"name": device.name} if on_cpu else {}
    versions = [minor_of(runtime.torch), None if on_cpu else minor_of(runtime.triton)]
    text = compact([facts, versions, policy_to_json(table.policy)])
    slug = _UNSAFE.sub("-", f"{device.slug[:_MOST_SLUG]}.torch{versions[0]}".lower())
    name = f"{slug}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return RowGroup(name, without_rows(table))


def origin_line(table: Table) -> tuple[bytes, bytes]:
    """Return the id and the text of *table*, which has no rows, as a segment has them."""
    return digest_of(table)[:16].encode(), compact(json.loads(encode(table))).encode()


def read_origin(text: bytes, path: str) -> Table:
    """Return the table without rows in *text*; *path* is for errors.

    Raises:
        TableFormatError, TableSchemaError: *text* is no table that this warmup reads.
    """
    return decode(text.decode("ascii", errors="replace"), path)


def address_of(group: RowGroup, key: str, row: Row) -> str:
    """Return the address of *row* for *key* in *group*: 64 hex digits.

    It is that of all that must agree for the row to answer: the group's device class, minors of
    torch and Triton and policy; the key; and the source of the winner's template.
    """
    name = group_of(group.origin).name
    return hashlib.sha256(compact([name, key, row.winner.source_hash]).encode()).hexdigest()
