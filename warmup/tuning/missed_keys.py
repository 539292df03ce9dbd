"""`missed_keys`: the keys of a misses document, its shares, and which need no measurement."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from warmup.core.counted import counted
from warmup.core.error_text import shown
from warmup.core.errors import NothingRecordedError, SettingsError
from warmup.core.method import Search
from warmup.core.rows import Row
from warmup.diagnostics.misses import MissedProblem

_SHARD: Final = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")


def parse_shard(text: str) -> tuple[int, int]:
    """Return the numbers I and N of a share written ``I/N``.

    Raises:
        SettingsError: *text* has another form, or I is larger than N.
    """
    match = _SHARD.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise SettingsError(
            f"--shard {shown(text)!r} is no share of the problems",
            "write I/N with I from 1 to N, such as 2/8",
        )
    return int(match[1]), int(match[2])


def share_of(problems: Sequence[MissedProblem], shard: str | None) -> Sequence[MissedProblem]:
    """Return the share *shard* of *problems*, such as ``2/8``; all of them for None.

    The keys are ordered by a hash, and each N-th one belongs to the share: the N shares are
    disjoint, have all keys together, differ by one key at most, and are the same on every machine
    and for every order of the document.

    Raises:
        SettingsError: *shard* is not of the form ``I/N``.
        NothingRecordedError: the share has no problem, since N is larger than their number.
    """
    if shard is None:
        return problems
    number, count = parse_shard(shard)
    keys = sorted({each.key for each in problems}, key=_digest)
    chosen = set(keys[number - 1 :: count])
    if not chosen:
        problem_count = counted(len(keys), "problem")
        raise NothingRecordedError(
            f"share {shard} is empty: the document has {problem_count}", "use fewer shares"
        )
    return [each for each in problems if each.key in chosen]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "backslashreplace")).digest()


def missed_keys(problems: Iterable[MissedProblem]) -> dict[str, bool]:
    """Return each key once, with whether its row could not be used at serving."""
    is_stale: dict[str, bool] = {}
    for problem in problems:
        is_stale[problem.key] = is_stale.get(problem.key, False) or problem.is_stale
    return is_stale


def keys_with_row(
    missed: Mapping[str, bool], rows: Mapping[str, Row], search: Search, *, force: bool
) -> tuple[str, ...]:
    """Return the keys of *missed* that a row of *rows* answers, so that nothing is measured.

    *missed* says of each key whether its row could not be used at serving. A row that is not
    trusted, or that was searched less far than *search*, answers nothing; with *force* none does.
    """
    return tuple(
        key
        for key, is_stale in missed.items()
        if (row := rows.get(key)) is not None and not (force or is_stale)
        if row.untrusted is None
        if not row.evidence.search.is_narrower_than(search)
    )
