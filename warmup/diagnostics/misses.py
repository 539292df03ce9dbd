"""`MissedProblem` and the misses document: the problems that no row answered while serving.

`warmup audit --misses-out` writes the document, and `warmup build --problems` reads it:

    {"schema": 1, "digests": [...], "problems": [{"key", "kind", "reason", "count"}, ...]}

Canonical form: sorted, two-space indent, LF, ASCII. It is read without trust.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from warmup.core.error_text import printable, remedy_for, shown
from warmup.core.errors import SettingsError, TableFormatError
from warmup.core.files import open_regular
from warmup.core.miss_reasons import MissReason
from warmup.core.strict_json import check_texts, pointer_of, read_json
from warmup.diagnostics.audit import AuditReport
from warmup.keys.kind import natural_order
from warmup.keys.registry import KINDS, kind_of

MISSES_SCHEMA: Final = 1
TUNED: Final = "tuned"  # the reason of a problem that on_miss="tune" measured at serving
_MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
_MAX_KEY: Final = 4096
_MAX_REASON_LENGTH: Final = 64
_MAX_DIGESTS: Final = 10_000
_MAX_MISSES: Final = 10**15
# The reasons of keys that have a row which cannot be used.
_STALE: Final = frozenset(
    {
        MissReason.TEMPLATE_ABSENT,
        MissReason.TEMPLATE_CHANGED,
        MissReason.CHOICE_REJECTED,
        MissReason.UNTRUSTED,
    }
)


_Word = Annotated[str, Meta(max_length=_MAX_REASON_LENGTH)]


class _Problem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    count: Annotated[int, Meta(ge=1, le=_MAX_MISSES)]
    key: Annotated[str, Meta(max_length=_MAX_KEY)]
    kind: _Word
    layers: msgspec.Raw = msgspec.Raw()  # of earlier audits, and ignored
    reason: _Word
    source: msgspec.Raw = msgspec.Raw()  # as layers


class _Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    digests: Annotated[list[_Word], Meta(max_length=_MAX_DIGESTS)]
    problems: list[_Problem]
    schema: Annotated[int, Meta(ge=1, le=MISSES_SCHEMA)]


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
    name = f"--problems {shown(path)}"
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_DOCUMENT_BYTES:
                raise SettingsError(f"{name}: larger than {_MAX_DOCUMENT_BYTES} bytes", advice)
            document, _ = read_json(file.read(), _Document, str(path))
            return _problems(document, str(path))
    except TableFormatError as error:
        at = f" at {shown(error.pointer)}" if error.pointer else ""
        problem = f"{name}: not a misses document{at}: {shown(error.reason)}"
        raise SettingsError(problem, advice) from None
    except OSError as error:
        raise SettingsError(
            f"{name}: cannot be read: {error.strerror}", remedy_for(error, advice)
        ) from error
    except ValueError as error:  # a path with a NUL character
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"{name}: cannot be read: {error}", advice) from error


def _problems(document: _Document, path: str) -> tuple[MissedProblem, ...]:
    """Return the problems of *document*.

    Raises:
        TableFormatError: one is there twice, or a text cannot be printed.
    """
    check_texts(document.digests, path, "digests")
    problems: dict[tuple[str, str], MissedProblem] = {}
    for number, each in enumerate(document.problems):
        place = "problems", number
        texts = {"key": each.key, "reason": each.reason}
        check_texts(texts, path, *place)
        if each.kind not in KINDS or each.kind != kind_of(each.key).name:
            reason = f"the key is of kind {kind_of(each.key).name}"
            raise TableFormatError(path, pointer_of(*place, "kind"), reason)
        if (each.key, each.reason) in problems:
            reason = f"problem {number} is a repetition"
            raise TableFormatError(path, pointer_of("problems"), reason)
        problems[each.key, each.reason] = MissedProblem(
            each.key, each.kind, each.reason, each.count
        )
    return tuple(problems.values())


def _bounded(text: str, limit: int) -> str:
    return printable(text)[:limit]
