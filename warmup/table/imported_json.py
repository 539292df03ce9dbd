"""`imported_to_json` and `read_imported`: the imported configs of a table as JSON, and back.

A member of the table has, by key, an array of objects with a ``winner``, an ``origin`` such as
``autotune.log:12`` and, where the other tool noted them, ``time_us`` and ``library_us``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from warmup.core.errors import ProblemError
from warmup.core.imported_config import FASTEST_US, SLOWEST_US, ImportedConfig, wrong_kwarg
from warmup.core.json_node import Node
from warmup.core.rows import Family
from warmup.core.strict_json import JsonReader
from warmup.keys.registry import kind_of
from warmup.table.canonical import compact
from warmup.table.winners import read_winner, winner_to_json

MAX_CONFIGS: Final = 16  # of one key
MAX_ORIGIN: Final = 256
_NOTED_TIMES: Final = ("time_us", "library_us")

Imported = Mapping[str, tuple[ImportedConfig, ...]]


def imported_to_json(imported: Imported) -> dict[str, object]:
    """Return *imported* as JSON values, its keys sorted."""
    return {key: [_to_json(one) for one in imported[key]] for key in sorted(imported)}


def _to_json(config: ImportedConfig) -> dict[str, object]:
    times = {name: value for name in _NOTED_TIMES if (value := getattr(config, name)) is not None}
    return {"winner": winner_to_json(config.winner), "origin": config.origin, **times}


def read_imported(reader: JsonReader, section: Node, sha: hashlib._Hash) -> Imported:
    """Return the imported configs of the object at *reader*, and add its compact text to *sha*.

    Raises:
        TableFormatError: a key or a value is unknown, missing, or out of its bounds.
    """
    found: dict[str, tuple[ImportedConfig, ...]] = {}
    sha.update(b"{")
    for key in reader.members():
        value = reader.value()
        node = Node(value, section.path, section, key)
        try:
            kind = kind_of(key)
            kind.check(key)
        except ProblemError:
            node.fail("the name of these configs is not a key")
        sha.update(f"{',' if found else ''}{compact(key)}:{compact(value)}".encode())
        configs = []
        for each in node.elements(MAX_CONFIGS):
            members = each.members(
                frozenset({"winner", "origin"}), optional=frozenset(_NOTED_TIMES)
            )
            times = {
                name: members[name].number(FASTEST_US, SLOWEST_US)
                for name in _NOTED_TIMES
                if name in members
            }
            winner = read_winner(kind, members["winner"])
            wrong = wrong_kwarg(dict(winner.kwargs)) if winner.family is Family.TEMPLATE else None
            if wrong is not None:
                members["winner"].fail(wrong)
            configs.append(ImportedConfig(winner, members["origin"].string(MAX_ORIGIN), **times))
        found[key] = tuple(configs)
    sha.update(b"}")
    return found
