"""`without_retired`: a table without what it has of features that warmup no longer has.

Such a table is read as before: its digest is that of the bytes as they are, and `warmup show` says
which fields were ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec


@dataclass(frozen=True, slots=True)
class _Retired:
    """The members behind *names*, ``*`` for any, which are ignored.

    With *words* a member is kept where it is one of these, as the word that takes its place.
    """

    names: tuple[str, ...]
    words: Mapping[bytes, bytes] | None = None

    @property
    def pointer(self) -> str:
        return "/" + "/".join(self.names)


_RETIRED: Final[Sequence[_Retired]] = (
    _Retired(("imported",)),  # configs that nobody had measured
    _Retired(("provenance", "layers")),  # in which forms repeated layers were compiled
    # A build that searches such a row again then tries more candidates, as before.
    _Retired(("rows", "*", "*", "evidence", "search"), words={b'"predicted"': b'"imported"'}),
)


def without_retired(data: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return the table *data* without retired fields, and the JSON pointers of these, if any."""
    pointers = []
    for retired in _RETIRED:
        changed = _changed(data, retired.names, retired)
        if changed is not None:
            data = changed
            pointers.append(retired.pointer)
    return data, tuple(pointers)


def _changed(data: bytes, names: tuple[str, ...], retired: _Retired) -> bytes | None:
    """Return *data* without what is *retired* behind *names*; None where it has nothing of it."""
    members = _members(data)
    is_changed = False
    for name in list(members) if names[0] == "*" else names[:1]:
        if name not in members:
            continue
        raw = bytes(members[name])
        if names[1:]:
            new = _changed(raw, names[1:], retired)
        elif retired.words is not None:
            new = retired.words.get(raw)
        else:
            del members[name]
            is_changed = True
            continue
        if new is not None:
            members[name] = msgspec.Raw(new)
            is_changed = True
    return msgspec.json.encode(members) if is_changed else None


def _members(data: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return {}
