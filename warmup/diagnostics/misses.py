"""`MissedProblem` and the misses document: the problems that no row answered while serving.

`warmup audit --misses-out` writes the document, and `warmup build --problems` reads it:

    {"schema": 1, "digests": [...], "problems": [{"key", "kind", "reason", "count"}, ...]}

A problem may also have a ``source``: the model that it is of, or ``random``.

Canonical form: sorted, two-space indent, LF, ASCII. It is read without trust.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from warmup.core.error_text import printable, remedy_for, shown
from warmup.core.errors import SettingsError, TableFormatError
from warmup.core.files import open_regular
from warmup.core.json_node import Node
from warmup.core.miss_reasons import MissReason
from warmup.core.strict_json import JsonError, JsonReader
from warmup.diagnostics.audit import AuditReport
from warmup.keys.order import natural_order
from warmup.keys.registry import KINDS, kind_of

MISSES_SCHEMA: Final = 1
TUNED: Final = "tuned"  # the reason of a problem that on_miss="tune" measured at serving
_MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
_MAX_KEY: Final = 4096
_MAX_REASON_LENGTH: Final = 64
_MAX_DIGESTS: Final = 10_000
_MAX_MISSES: Final = 10**15
_DOCUMENT: Final = frozenset({"schema", "digests", "problems"})
_LISTS: Final = frozenset({"digests", "problems"})
_PIECE_LETTERS: Final = 256 * 1024
_PROBLEM: Final = frozenset({"key", "kind", "reason", "count"})
_MAY_HAVE: Final = frozenset({"source", "layers"})  # "layers" is of earlier audits, and ignored
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
    """A problem that no row answered, with the reason and the number of misses.

    ``source`` names the model that the problem is of, or ``random``; empty where nobody said.
    """

    key: str
    kind: str
    reason: str
    count: int
    source: str = ""

    @property
    def is_stale(self) -> bool:
        """Whether the table has a row for the key that could not be used."""
        return self.reason in _STALE


def encode_misses(report: AuditReport) -> str:
    """Return the misses document of *report*: its misses and its tuned problems.

    Keys come from logs and are not trusted: characters that cannot be printed are escaped, and keys
    are cut to the length that `read_misses` accepts.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for miss in report.misses:
        problem = _bounded(miss.key, _MAX_KEY), _bounded(miss.reason, _MAX_REASON_LENGTH)
        counts[problem] += miss.count
    for key, count in report.tuned.items():
        counts[_bounded(key, _MAX_KEY), TUNED] += count
    return encode_problems(counts, report.digests)


def encode_problems(counts: Mapping[tuple[str, str], int], digests: Iterable[str]) -> str:
    """Return the misses document of problems by key and reason, missed under tables *digests*."""
    problems = [
        MissedProblem(key, kind_of(key).name, reason, min(count, _MAX_MISSES))
        for (key, reason), count in sorted(
            counts.items(), key=lambda item: (natural_order(item[0][0]), item[0])
        )
    ]
    document = {
        "schema": MISSES_SCHEMA,
        "digests": sorted({_bounded(digest, _MAX_REASON_LENGTH) for digest in digests})[
            :_MAX_DIGESTS
        ],
        "problems": [_document_of(problem) for problem in problems],
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _document_of(problem: MissedProblem) -> dict[str, object]:
    values = asdict(problem)
    if not problem.source:
        del values["source"]
    return values


def read_misses(path: str | Path) -> tuple[MissedProblem, ...]:
    """Return the problems in the misses document *path*, in its order.

    Raises:
        SettingsError: the file cannot be read, or is not a misses document; the text has the JSON
            pointer.
    """
    path = Path(path)
    advice = "write it with `warmup audit LOG... --misses-out FILE`"
    name = f"--problems {shown(path)}"
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_DOCUMENT_BYTES:
                raise SettingsError(f"{name}: larger than {_MAX_DOCUMENT_BYTES} bytes", advice)
            with io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="") as text:
                pieces = iter(lambda: text.read(_PIECE_LETTERS), "")
                return _read_document(JsonReader(pieces), Node(None, str(path)))
    except JsonError as error:
        raise SettingsError(f"{name}: not a misses document: {shown(error)}", advice) from None
    except TableFormatError as error:
        at = f"{shown(error.pointer)}: {shown(error.reason)}"
        raise SettingsError(f"{name}: not a misses document at {at}", advice) from None
    except OSError as error:
        raise SettingsError(
            f"{name}: cannot be read: {error.strerror}", remedy_for(error, advice)
        ) from error
    except ValueError as error:  # a path with a NUL character
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"{name}: cannot be read: {error}", advice) from error


def _read_document(reader: JsonReader, root: Node) -> tuple[MissedProblem, ...]:
    problems: dict[tuple[str, str], MissedProblem] = {}
    found: dict[str, object] = {}
    if not reader.is_at_object():
        root.value = reader.value()
        root.items()
    for name in reader.members():
        node = Node(None, root.path, root, name)
        found[name] = None
        if name not in _LISTS or not reader.is_at_array():
            node.value = reader.value()
            if name == "schema":
                node.integer(1, MISSES_SCHEMA)
            else:
                node.fail("expected an array" if name in _LISTS else "unknown field")
            continue
        for number in reader.elements():
            element = Node(reader.value(), root.path, node, str(number))
            if name == "digests":
                element.string(_MAX_REASON_LENGTH)
                if number == _MAX_DIGESTS:
                    node.fail(f"expected at most {_MAX_DIGESTS} digests")
                continue
            problem = _read_problem(element)
            if (problem.key, problem.reason) in problems:
                node.fail(f"problem {number} is a repetition")
            problems[problem.key, problem.reason] = problem
    reader.finish()
    root.value = found
    root.members(_DOCUMENT)
    return tuple(problems.values())


def _read_problem(node: Node) -> MissedProblem:
    members: Mapping[str, Node] = node.members(_PROBLEM, optional=_MAY_HAVE)
    key = members["key"].string(_MAX_KEY)
    kind = members["kind"].string(_MAX_REASON_LENGTH)
    if kind not in KINDS or kind != kind_of(key).name:
        members["kind"].fail(f"the key is of kind {kind_of(key).name}")
    reason = members["reason"].string(_MAX_REASON_LENGTH)
    count = members["count"].integer(1, _MAX_MISSES)
    source = members["source"].string(_MAX_REASON_LENGTH) if "source" in members else ""
    return MissedProblem(key, kind, reason, count, source)


def _bounded(text: str, limit: int) -> str:
    return printable(text)[:limit]
