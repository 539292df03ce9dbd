"""`evidence_to_json` and `evidence_from_json`: evidence as JSON values, and back with checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from warmup.core.json_node import Node
from warmup.core.method import Search
from warmup.core.ranking import MAX_RANKED
from warmup.core.rows import MAX_INT, Evidence, Flag, Rejection, Scope

_EnumWord = TypeVar("_EnumWord", Scope, Search)

_MIN_US: Final = 1e-6
_MAX_US: Final = 1e9
_MAX_RATE: Final = 1e9
_MAX_SHARE: Final = 1e6
_MAX_CHOICE: Final = 512
_MAX_RANKING: Final = 2048
_MAX_CANDIDATES: Final = 100_000
_MAX_RANGE_SIZES: Final = 8
_MAX_KERNELS: Final = 1000
_MAX_THREAD_REGISTERS: Final = 1024
_PAIR: Final = 2  # a size of the range, and the winner's time over the best time there

# Field -> (may be null, lowest, highest).
_NUMBERS: Final[Mapping[str, tuple[bool, float, float]]] = {
    "time_us": (False, _MIN_US, _MAX_US),
    "library_us": (True, _MIN_US, _MAX_US),
    "runner_up_us": (True, _MIN_US, _MAX_US),
    "bare_us": (True, _MIN_US, _MAX_US),
    "spread": (True, 0, _MAX_SHARE),
    "band": (True, 0, _MAX_SHARE),
    "error": (True, 0, _MAX_SHARE),
    "tflops": (True, 0, _MAX_RATE),
    "gbps": (True, 0, _MAX_RATE),
    "peak_share": (True, 0, _MAX_SHARE),
    "tried": (False, 1, _MAX_CANDIDATES),
    "clock_mhz": (True, 1, MAX_INT),
}
# Of newer rows, and of rows with the scope fused: absent where they are None.
_COUNTS: Final = {
    "kernels": (1, _MAX_KERNELS),
    "library_kernels": (1, _MAX_KERNELS),
    "spills": (0, MAX_INT),
    "registers": (1, _MAX_THREAD_REGISTERS),
}
# Of rows whose candidates were timed launched one by one on a GPU: the host's times.
_HOST_TIMES: Final = ("host_us", "library_host_us")
_WHOLE_NUMBERS: Final = frozenset({"tried", "clock_mhz"})
_EVIDENCE_FIELDS: Final = frozenset(
    {*_NUMBERS, "runner_up", "rejected", "flags", "scope", "search"}
)
# Of a key with a range, of a pad row or of newer rows only.
_OPTIONAL: Final = frozenset({"along", "ranking", "bare_ranking", *_HOST_TIMES, *_COUNTS})
_ENTRY: Final = r"[0-9]{1,9}(?:\.[0-9]{1,9})?(?:e[+-][0-9]{1,2})? [!-:<-~][ -:<-~]{0,159}"
_RANKING: Final = re.compile(rf"{_ENTRY}(?:; {_ENTRY}){{0,{MAX_RANKED - 1}}}")
_SCOPES: Final = {scope.value: scope for scope in Scope}
# Rows of the search ``predicted`` of earlier builds of warmup 0.1 are as narrow as those of
# ``imported``: a few picked candidates and the library's.
_SEARCHES: Final = {**{search.value: search for search in Search}, "predicted": Search.IMPORTED}
_REJECTIONS: Final = {reason.value: reason for reason in Rejection}
_FLAGS: Final = {flag.value: flag for flag in Flag}
_PLAIN_FIELDS: Final = tuple(
    (name, int if name in _WHOLE_NUMBERS else float, *bounds) for name, bounds in _NUMBERS.items()
)


def evidence_to_json(evidence: Evidence) -> dict[str, object]:
    """Return *evidence* as JSON values."""
    numbers = {name: _number(name, getattr(evidence, name)) for name in _NUMBERS}
    return {
        **numbers,
        "runner_up": evidence.runner_up,
        "rejected": {reason.value: count for reason, count in evidence.rejected},
        "flags": [flag.value for flag in evidence.flags],
        "scope": evidence.scope.value,
        "search": evidence.search.value,
        **({"along": [_pair(*pair) for pair in evidence.along]} if evidence.along else {}),
        **({"ranking": evidence.ranking} if evidence.ranking else {}),
        **({"bare_ranking": evidence.bare_ranking} if evidence.bare_ranking else {}),
        **{name: count for name in _COUNTS if (count := getattr(evidence, name)) is not None},
        **{
            name: float(host_us)
            for name in _HOST_TIMES
            if (host_us := getattr(evidence, name)) is not None
        },
    }


def evidence_from_json(node: Node) -> Evidence:
    """Return the evidence in *node*.

    Raises:
        TableFormatError: a value is missing, unknown, or out of its bounds.
    """
    evidence = plain_evidence(node.value)
    return evidence if evidence is not None else _checked(node)


def plain_evidence(value: Any) -> Evidence | None:
    """Return valid evidence without ``along``; None for any other value.

    Most rows have such evidence, and it is read without a node for each value. A caller that gets
    None reads with `evidence_from_json`, which finds what is wrong.
    """
    try:
        numbers = _plain_numbers(value)
        if numbers is None:
            return None
        runner_up = value["runner_up"]
        ranking, bare_ranking = value.get("ranking", ""), value.get("bare_ranking", "")
        counts = {name: value[name] for name in _COUNTS if name in value}
        fields = len(_EVIDENCE_FIELDS) + ("ranking" in value) + ("bare_ranking" in value)
        fields += len(numbers) - len(_NUMBERS) + len(counts)
        rejected, flags = _plain_rejected(value["rejected"]), _plain_flags(value["flags"])
        if rejected is None or flags is None or len(value) != fields:
            return None
    except (AttributeError, KeyError, TypeError):
        return None
    if not _are_plain_texts(runner_up, ranking, bare_ranking) or not _are_plain_counts(counts):
        return None
    scope, search = _known(value.get("scope"), _SCOPES), _known(value.get("search"), _SEARCHES)
    if scope is None or search is None:
        return None
    return Evidence(
        runner_up=runner_up,
        rejected=rejected,
        flags=flags,
        scope=scope,
        search=search,
        ranking=ranking,
        **counts,
        bare_ranking=bare_ranking,
        **numbers,
    )


def _plain_numbers(value: Any) -> dict[str, Any] | None:
    numbers = {}
    for name, number_type, is_optional, low, high in _PLAIN_FIELDS:
        number = value[name]
        if number is None:
            if not is_optional:
                return None
        elif type(number) is not number_type or not low <= number <= high:
            return None
        numbers[name] = number
    for name in _HOST_TIMES:
        if name in value:
            number = value[name]
            if type(number) is not float or not _MIN_US <= number <= _MAX_US:
                return None
            numbers[name] = number
    return numbers


def _are_plain_texts(runner_up: Any, *rankings: Any) -> bool:
    is_text = type(runner_up) is str and len(runner_up) <= _MAX_CHOICE and runner_up.isprintable()
    return (runner_up is None or is_text) and all(
        type(one) is str and (not one or bool(_RANKING.fullmatch(one))) for one in rankings
    )


def _are_plain_counts(counts: Mapping[str, Any]) -> bool:
    return all(
        type(count) is int and _COUNTS[name][0] <= count <= _COUNTS[name][1]
        for name, count in counts.items()
    )


def _plain_rejected(value: Any) -> tuple[tuple[Rejection, int], ...] | None:
    if type(value) is not dict:
        return None
    rejected: list[tuple[Rejection, int]] = []
    for name, count in value.items():
        reason = _REJECTIONS.get(name)
        if reason is None or type(count) is not int or not 1 <= count <= _MAX_CANDIDATES:
            return None
        rejected.append((reason, count))
    return tuple(sorted(rejected))


def _plain_flags(value: Any) -> tuple[Flag, ...] | None:
    if type(value) is not list or len(value) > len(_FLAGS):
        return None
    flags = [_FLAGS[word] for word in value if type(word) is str and word in _FLAGS]
    return tuple(flags) if len(flags) == len(value) else None


def _known(value: Any, words: Mapping[str, _EnumWord]) -> _EnumWord | None:
    return words.get(value) if type(value) is str else None


def _checked(node: Node) -> Evidence:
    members = node.members(_EVIDENCE_FIELDS, optional=_OPTIONAL)
    numbers: dict[str, Any] = {}
    for name, (is_optional, low, high) in _NUMBERS.items():
        read = _reader(name, low, high)
        numbers[name] = members[name].optional(read) if is_optional else read(members[name])
    for name in _HOST_TIMES:
        if name in members:
            numbers[name] = members[name].number(_MIN_US, _MAX_US)
    return Evidence(
        runner_up=members["runner_up"].optional(lambda n: n.string(_MAX_CHOICE)),
        rejected=tuple(sorted(_read_rejected(*item) for item in members["rejected"].items())),
        flags=_read_flags(members["flags"]),
        scope=_read_word(members["scope"], _SCOPES),
        search=_read_word(members["search"], _SEARCHES),
        along=_read_along(members["along"]) if "along" in members else (),
        ranking=_read_ranking(members["ranking"]) if "ranking" in members else "",
        bare_ranking=_read_ranking(members["bare_ranking"]) if "bare_ranking" in members else "",
        **{name: members[name].integer(*_COUNTS[name]) for name in _COUNTS if name in members},
        **numbers,
    )


def _reader(name: str, low: float, high: float) -> Callable[[Node], float]:
    if name in _WHOLE_NUMBERS:
        return lambda node: node.integer(int(low), int(high))
    return lambda node: node.number(low, high)


def _read_rejected(name: str, node: Node) -> tuple[Rejection, int]:
    if name not in set(Rejection):
        node.fail(f"not a reason; expected any of {', '.join(Rejection)}")
    return Rejection(name), node.integer(1, _MAX_CANDIDATES)


def _read_flags(node: Node) -> tuple[Flag, ...]:
    value = node.value
    if type(value) is not list or len(value) > len(Flag):
        node.fail(f"expected a list of at most {len(Flag)} flags")
    for flag in value:
        if type(flag) is not str or flag not in set(Flag):
            node.fail(f"not a flag; expected any of {', '.join(Flag)}")
    return tuple(Flag(flag) for flag in value)


def _read_ranking(node: Node) -> str:
    ranking = node.string(_MAX_RANKING)
    if not _RANKING.fullmatch(ranking):
        node.fail(f"expected at most {MAX_RANKED} times and candidates: '10.5 aten::mm; ...'")
    return ranking


def _read_along(node: Node) -> tuple[tuple[int, float | None], ...]:
    along: list[tuple[int, float | None]] = []
    for pair in node.elements(_MAX_RANGE_SIZES):
        if type(pair.value) is not list or len(pair.value) != _PAIR:
            pair.fail("expected a size and a ratio")
        size, ratio = pair.elements(_PAIR)
        lowest = along[-1][0] + 1 if along else 1
        along.append(
            (size.integer(lowest, MAX_INT), ratio.optional(lambda n: n.number(1, _MAX_SHARE)))
        )
    return tuple(along)


def _pair(size: int, ratio: float | None) -> list[float | None]:
    return [size, None if ratio is None else float(ratio)]


def _read_word(node: Node, words: Mapping[str, _EnumWord]) -> _EnumWord:
    word = node.string(16)
    if word not in words:
        node.fail(f"expected one of {', '.join(words)}")
    return words[word]


def _number(name: str, value: float | None) -> float | None:
    return value if value is None or name in _WHOLE_NUMBERS else float(value)
