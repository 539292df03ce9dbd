"""`MissedProblem` and the misses document: the problems that no row answered while serving.

`warmup audit --misses-out` writes the document, and `warmup build --problems` reads it:

    {"schema": 1, "digests": [...], "problems": [{"key", "kind", "reason", "count"}, ...]}

Canonical form: sorted, two-space indent, LF, ASCII. It is read without trust.
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
# The reasons of keys that have a row which cannot be used.
_STALE: Final = frozenset(
    {
        MissReason.TEMPLATE_ABSENT,
        MissReason.TEMPLATE_CHANGED,
        MissReason.CHOICE_REJECTED,
        MissReason.UNTRUSTED,
    }
)


@dataclass(frozen=True, slots=True)
class MissedProblem:
    """A problem that no row answered, with the reason and the number of misses."""

    key: str
    kind: str
    reason: str
    count: int

    @property
    def is_stale(self) -> bool:
        """Whether the table has a row for the key that could not be used."""
        return self.reason in _STALE


def encode_misses(report: AuditReport) -> str:
    """Return the misses document of *report*: its misses, and its problems tuned while serving.

    Keys come from logs and are not trusted: characters that cannot be printed are escaped, and keys
    are cut to the length that `read_misses` accepts.
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
        SettingsError: the file cannot be read, or is not a misses document; the text has the JSON
            pointer.
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
        problem = f"--problems {path}: not a misses document{at}: {error.reason}"
        raise SettingsError(printable(problem), advice) from None


def _read_document(root: Node) -> tuple[MissedProblem, ...]:
    members = root.members(_DOCUMENT)
    members["schema"].integer(1, MISSES_SCHEMA)
    for digest in _elements(members["digests"]):
        digest.string(_MAX_REASON_LENGTH)
    problems = tuple(_read_problem(node) for node in _elements(members["problems"]))
    seen: set[tuple[str, str]] = set()
    for number, problem in enumerate(problems):
        if (problem.key, problem.reason) in seen:
            members["problems"].fail(f"problem {number} is a repetition")
        seen.add((problem.key, problem.reason))
    return problems


def _read_problem(node: Node) -> MissedProblem:
    members: Mapping[str, Node] = node.members(_PROBLEM)
    key = members["key"].string(_MAX_KEY)
    kind = members["kind"].string(_MAX_REASON_LENGTH)
    if kind not in KINDS or kind != kind_of(key).name:
        members["kind"].fail(f"the key is of kind {kind_of(key).name}")
    reason = members["reason"].string(_MAX_REASON_LENGTH)
    return MissedProblem(key, kind, reason, members["count"].integer(1, _MAX_MISSES))


def _elements(node: Node) -> Iterable[Node]:
    value = node.value
    if not isinstance(value, list):
        node.fail("expected an array")
    return [Node(element, node.path, node, str(i)) for i, element in enumerate(value)]


def _bounded(text: str, limit: int) -> str:
    return printable(text)[:limit]
