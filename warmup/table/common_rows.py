"""`CommonRows`: the rows of one kind, read fast where they have the common form.

Large tables have many rows, nearly all in the canonical form and with few different winners. Such a
row is read without a node for each value, and a winner's text is read once. All other rows are left
to the caller, who checks them value by value, which gives the JSON pointer of an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from warmup.core.rows import Row, Winner
from warmup.core.strict_json import MAX_VALUE, JsonReader, parse_json, scanner
from warmup.table.canonical import compact
from warmup.table.evidence import plain_evidence

# A row in the canonical order, with a winner whose only object is its kwargs.
_TO_EVIDENCE: Final = re.compile(r'\{[ \t\n\r]*"evidence"[ \t\n\r]*:[ \t\n\r]*')
_TO_END: Final = re.compile(
    r'[ \t\n\r]*,[ \t\n\r]*"winner"[ \t\n\r]*:[ \t\n\r]*(\{[^{}]*\{[^{}]*\}[^{}]*\})[ \t\n\r]*\}'
)
_LINE_BEGIN: Final = re.compile(r"\n *")
_scan_pairs: Final = scanner(tuple)  # an object is a tuple of pairs, in which repetitions show


class CommonRows:
    """Reads rows of the common form; *read_winner* checks the JSON value of a winner."""

    def __init__(self, read_winner: Callable[[str, object], Winner]) -> None:
        self._read_winner = read_winner
        # The text of a winner that was read before -> the winner, and its compact text.
        self._winners: dict[str, tuple[Winner, str]] = {}

    def read(self, reader: JsonReader, key: str) -> tuple[Row, str] | None:
        """Return the row of *key* at *reader*, with its compact JSON, and go behind it.

        Returns None, and stays, where the row has another form.

        Raises:
            JsonError, TableFormatError: the winner is not valid.
        """
        begin = reader.match(_TO_EVIDENCE)
        if begin is None:
            return None
        try:
            pairs, at = _scan_pairs(reader.text, begin.end())
        except (ValueError, RecursionError):
            return None
        end = _TO_END.match(reader.text, at)
        if end is None or end.end() - begin.start() > MAX_VALUE:
            return None
        members = _members(pairs)
        evidence = None if members is None else plain_evidence(members)
        if evidence is None:
            return None
        known = self._winners.get(end[1])
        if known is None:
            value = parse_json(end[1])
            known = self._winners[end[1]] = (self._read_winner(key, value), compact(value))
        reader.at = end.end()
        winner, text = known
        evidence_text = _without_spaces(reader.text[begin.end() : at], members)
        return Row(winner, evidence), f'{{"evidence":{evidence_text},"winner":{text}}}'


def _without_spaces(text: str, value: object) -> str:
    """Return *text*, the JSON of *value*, as `compact` would write it, if it is canonical.

    Without a backslash no string has a quote or ends a line, so that what is taken out stands
    between values. Of a text in another form the result is JSON of the same value.
    """
    if "\\" in text:
        return compact(value)
    return _LINE_BEGIN.sub("", text).replace('": ', '":')


def _members(pairs: Any) -> dict[str, Any] | None:
    """Return the members of an evidence and of its rejections; None where a name is repeated."""
    if type(pairs) is not tuple:
        return None
    members = dict(pairs)
    rejected = members.get("rejected")
    if type(rejected) is tuple:
        members["rejected"] = dict(rejected)
        if len(members["rejected"]) != len(rejected):
            return None
    return members if len(members) == len(pairs) else None
