"""`read_winner` and `winner_to_json`: a `Winner` from the JSON of a table, and back.

Tables are not trusted.

Nothing in a winner is executable: kwargs are numbers, booleans, null and a closed set of words.
"""

from __future__ import annotations

import re
from typing import Final

from warmup.core.json_node import Node
from warmup.core.rows import MAX_INT, Family, KwargValue, Winner
from warmup.keys.kind import Kind

_UID_TEXT = re.compile(r"[A-Za-z0-9_.:]{1,128}")
_KWARG = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Inductor pastes template kwargs into kernel source: a text is a Triton dtype or a plain name.
_KWARG_WORD = re.compile(r"tl\.[a-z0-9]{1,24}|[A-Za-z0-9_]{0,32}")
_HASH = re.compile(r"[0-9a-f]{8,64}")
_WINNER: Final = frozenset({"family", "uid", "kwargs", "source_hash"})
_WINNER_OPTIONAL: Final = frozenset({"fused"})  # of a template that was measured in its region


def read_winner(kind: Kind, node: Node) -> Winner:
    """Return the winner in *node*, of a row of *kind*.

    Raises:
        TableFormatError: a value is missing, unknown, or out of its bounds.
    """
    members = node.members(_WINNER, optional=_WINNER_OPTIONAL)
    family = members["family"]
    if not isinstance(family.value, str) or family.value not in kind.families:
        family.fail(f"expected one of {', '.join(sorted(kind.families))}")
    uid = members["uid"].string(128)
    if _UID_TEXT.fullmatch(uid) is None:
        members["uid"].fail("not the uid of a template or kernel")
    kwargs = sorted((name, _read_kwarg(name, value)) for name, value in members["kwargs"].items())
    source_hash = members["source_hash"]
    if source_hash.value is not None and _HASH.fullmatch(source_hash.string(64)) is None:
        source_hash.fail("not a source hash")
    return Winner(
        Family(family.string(16)),
        uid,
        tuple(kwargs),
        source_hash.optional(lambda n: n.string(64)),
        _read_fused(members["fused"], family) if "fused" in members else None,
    )


def _read_fused(node: Node, family: Node) -> bool:
    if type(node.value) is not bool:
        node.fail("expected true or false")
    if family.value != Family.TEMPLATE:
        node.fail("only a winner of the family template is fused or not")
    return node.value


def _read_kwarg(name: str, node: Node) -> KwargValue:
    if _KWARG.fullmatch(name) is None:
        node.fail("not the name of a template parameter")
    value = node.value
    if value is None or type(value) is bool:
        return value
    if type(value) is not str:
        return node.integer(-MAX_INT, MAX_INT)
    if _KWARG_WORD.fullmatch(value) is None:
        node.fail("a word here may only be a Triton dtype or a plain name")
    return value


def winner_to_json(winner: Winner) -> dict[str, object]:
    """Return *winner* as JSON values."""
    return {
        "family": winner.family.value,
        "uid": winner.uid,
        "kwargs": dict(winner.kwargs),
        "source_hash": winner.source_hash,
        **({} if winner.fused is None else {"fused": winner.fused}),
    }
