"""The misses document: what was asked for at serving and answered by no row.

`warmup audit --misses-out` writes it and `warmup build --problems` reads it:

    {"schema": 1, "digests": [...], "problems": [{"key", "kind", "reason", "count"}, ...]}

Canonical: sorted, two-space indent, LF, ASCII. Whoever reads it trusts nothing in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from warmup.core.errors import SettingsError, TableFormatError, printable
from warmup.core.rows import MissReason
from warmup.diagnostics.audit import AuditReport
from warmup.keys.order import natural_order
from warmup.keys.registry import KINDS, kind_of
from warmup.table.decode import Node, load_json

MISSES_SCHEMA: Final = 1
TUNED: Final = "tuned"  # the reason of a problem that on_miss="tune" measured at serving
_MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
_MAX_KEY: Final = 4096
_MAX_REASON_LENGTH: Final = 64
_MAX_MISSES: Final = 10**15
_DOCUMENT: Final = frozenset({"schema", "digests", "problems"})
_PROBLEM: Final = frozenset({"key", "kind", "reason", "count"})
# There is a row for these, and it cannot be used.
_STALE: Final = frozenset(
    {MissReason.TEMPLATE_ABSENT, MissReason.TEMPLATE_CHANGED, MissReason.CHOICE_REJECTED}
)


@dataclass(frozen=True, slots=True)
class MissedProblem:
    """One problem that no row answered: why, and how often."""

    key: str
    kind: str
    reason: str
    count: int

    @property
    def is_stale(self) -> bool:
        """True when there is a row for this key that could not be used."""
        return self.reason in _STALE


def encode_misses(report: AuditReport) -> str:
    """Return the document of everything in *report* that no row answered.

    Keys of a log are not trusted either: what cannot be printed stands escaped, and is cut off at
    the length that a reader accepts.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for miss in report.misses:
        counts[_bounded(miss.key, _MAX_KEY), _bounded(miss.reason, _MAX_REASON_LENGTH)] += (
            miss.count
        )
    for key, count in report.tuned.items():
        counts[_bounded(key, _MAX_KEY), TUNED] += count
    problems = [
        MissedProblem(key, kind_of(key).name, reason, min(count, _MAX_MISSES))
        for (key, reason), count in sorted(
            counts.items(), key=lambda item: (natural_order(item[0][0]), item[0])
        )
    ]
    document = {
        "schema": MISSES_SCHEMA,
        "digests": sorted({_bounded(digest, _MAX_REASON_LENGTH) for digest in report.digests}),
        "problems": [asdict(problem) for problem in problems],
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def read_misses(path: str | Path) -> tuple[MissedProblem, ...]:
    """Return the problems in the misses document *path*, in its order.

    Raises:
        SettingsError: it cannot be read, or is not such a document; it names the JSON pointer.
    """
    path = Path(path)
    advice = "write it with `warmup audit LOG... --misses-out FILE`"
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_DOCUMENT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"--problems {path}: cannot be read: {reason}", advice) from error
    if len(raw) > _MAX_DOCUMENT_BYTES:
        raise SettingsError(f"--problems {path}: larger than {_MAX_DOCUMENT_BYTES} bytes", advice)
    try:
        text = raw.decode("utf-8", errors="replace")
        return _read_document(Node(load_json(text, str(path)), str(path)))
    except TableFormatError as error:
        at = f" at {error.pointer}" if error.pointer else ""
        said = f"--problems {path}: not a misses document{at}: {error.reason}"
        raise SettingsError(printable(said), advice) from None


def _read_document(root: Node) -> tuple[MissedProblem, ...]:
    members = root.members(_DOCUMENT)
    members["schema"].integer(1, MISSES_SCHEMA)
    for digest in _elements(members["digests"]):
        digest.string(_MAX_REASON_LENGTH)
    found = tuple(_read_problem(node) for node in _elements(members["problems"]))
    seen: set[tuple[str, str]] = set()
    for number, problem in enumerate(found):
        if (problem.key, problem.reason) in seen:
            members["problems"].fail(f"problem {number} stands there twice")
        seen.add((problem.key, problem.reason))
    return found


def _read_problem(node: Node) -> MissedProblem:
    members: Mapping[str, Node] = node.members(_PROBLEM)
    key = members["key"].string(_MAX_KEY)
    kind = members["kind"].string(_MAX_REASON_LENGTH)
    if kind not in KINDS or kind != kind_of(key).name:
        members["kind"].fail(f"the key is one of kind {kind_of(key).name}")
    reason = members["reason"].string(_MAX_REASON_LENGTH)
    return MissedProblem(key, kind, reason, members["count"].integer(1, _MAX_MISSES))


def _elements(node: Node) -> Iterable[Node]:
    value = node.value
    if not isinstance(value, list):
        node.fail("expected an array")
    return [Node(element, node.path, node, str(i)) for i, element in enumerate(value)]


def _bounded(text: str, limit: int) -> str:
    return printable(text)[:limit]
