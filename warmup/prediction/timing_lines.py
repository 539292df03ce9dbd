"""`TimedProblem`: every candidate's time of one problem, as lines of `--timings` files have it.

A line is complete by itself, so files may be cut, appended to and concatenated. A file whose name
ends in ``.gz`` is compressed.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from warmup.core.errors import SettingsError, TableFormatError
from warmup.core.json_node import Node
from warmup.core.method import Method
from warmup.core.rows import Family, Flag, KwargValue, Tuned, Winner
from warmup.core.runtime import Runtime
from warmup.core.search import search_to_json
from warmup.core.strict_json import JsonError, parse_json
from warmup.keys.registry import kind_of

TIMINGS_SCHEMA: Final = 1
_MAX_LINE_LETTERS: Final = 16 * 1024 * 1024
_LONGEST_TIME_US: Final = 1e12
_LARGEST_SPREAD: Final = 1e6
MAX_SPREAD: Final = Method().max_spread  # beyond which a build takes no time for a decision
_MOST_CHOICES: Final = 100_000
_WORD_VALUES: Final[Mapping[str, KwargValue]] = {"True": True, "False": False, "None": None}
_FAMILY_OF: Final = {"aten": Family.EXTERN, "triton": Family.TEMPLATE}
_ORIGIN_FIELDS: Final = frozenset({"device", "torch", "triton", "templates"})
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_CHOICE_KWARG: Final = re.compile(r"(\w+)=([^,]*)(?:,|$)")
_WRITE_ADVICE: Final = "write it with `warmup build ... --timings FILE`"
_OfLine = TypeVar("_OfLine")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOn:
    """Where times were taken: the device and its software, by the names that `Runtime` has."""

    device: str
    sm_count: int
    arch: str
    torch: str
    triton: str

    @classmethod
    def of(cls, here: Runtime) -> MeasuredOn:
        """Return the facts of *here*."""
        device = here.device
        return cls(
            device=device.name,
            sm_count=device.sm_count or 0,
            arch=device.arch,
            torch=here.torch,
            triton=here.triton or "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedProblem:
    """A problem and the median time of each candidate that ran, in microseconds.

    ``times_us`` are of the problem alone, without what is fused into it; ``scattered`` counts the
    candidates that have none, since their times scattered too much for a build to choose them.
    ``source`` names the model that the problem is of, or ``random``; empty where nobody said.
    ``on`` is None in lines older than schema 1. ``templates`` has inductor's hash of the source of
    each template.
    """

    key: str
    source: str
    is_unstable: bool
    times_us: Mapping[Winner, float]
    on: MeasuredOn | None
    templates: Mapping[str, str]
    method: str
    scattered: int = 0


def line_of(tuned: Tuned, here: Runtime, method: str, source: str = "") -> str:
    """Return *tuned*, measured *here*, as a line without a newline; cli.md has each field.

    *method* is how calls were launched and what the L2 held, ``eager cold``; *source* as in
    `TimedProblem`.
    """
    hashes = {
        timing.winner.uid: timing.winner.source_hash
        for timing in tuned.timings
        if timing.winner.source_hash is not None
    }
    on = MeasuredOn.of(here)
    origin: dict[str, Any] = {
        "schema": TIMINGS_SCHEMA,
        "source": source,
        "device": {"name": on.device, "sm_count": on.sm_count, "arch": on.arch},
        "torch": on.torch,
        "triton": on.triton,
        "method": method,
        "clock_mhz": tuned.row.evidence.clock_mhz,
        "flags": list(tuned.row.evidence.flags),
        "templates": hashes,
    }
    return json.dumps({**timings_to_json(tuned), **origin})


def timings_to_json(tuned: Tuned) -> dict[str, Any]:
    """Return the candidates of *tuned* as JSON values; docs/reference/cli.md#timings has each."""
    return {
        "key": tuned.key,
        "winner": str(tuned.row.winner),
        "searched": None if tuned.searched is None else search_to_json(tuned.searched),
        "candidates": [
            {
                "choice": str(timing.winner),
                "time_us": timing.time_us,
                "spread": timing.spread,
                "fused_us": timing.fused_us,
                "host_us": timing.host_us,
                "along_us": dict(timing.along_us),
                "rejection": timing.rejection,
                "said": timing.said,
            }
            for timing in tuned.timings
        ],
    }


def read_timings(paths: Iterable[str | Path]) -> tuple[TimedProblem, ...]:
    """Return the GEMM problems in the files *paths*, each key once: its last line counts.

    Problems of other kinds are left out. A problem whose times all scatter, or of which no
    candidate ran, has no times.

    Raises:
        SettingsError: a file cannot be read, or has a line that is no line of timings.
    """
    found: dict[tuple[str, str], TimedProblem] = {}
    for timed in read_lines(paths, "gemm", _read):
        found[timed.on.device if timed.on else "", timed.key] = timed
    return tuple(found.values())


def read_lines(
    paths: Iterable[str | Path],
    kind: str,
    read: Callable[[str, Mapping[str, Node]], _OfLine | None],
) -> Iterator[_OfLine]:
    """Yield what *read* makes of the key and the fields of each line about a problem of *kind*.

    Raises:
        SettingsError: a file cannot be read, or has a line that is no line of timings.
    """
    for path in map(Path, paths):
        for number, text in enumerate(_lines(path), start=1):
            try:
                node = Node(parse_json(text), str(path))
                members = dict(node.items())
                for name in ("key", "candidates"):
                    if name not in members:
                        node.fail(f"missing: {name}")
                key = members["key"].string()
                made = read(key, members) if kind_of(key).name == kind else None
            except (JsonError, TableFormatError) as error:
                reason = error.reason if isinstance(error, TableFormatError) else str(error)
                raise SettingsError(
                    f"{path}, line {number}: no line of timings: {reason}", _WRITE_ADVICE
                ) from None
            if made is not None:
                yield made


def candidates_of(members: Mapping[str, Node], *names: str) -> Iterator[Mapping[str, Node]]:
    """Yield the fields of each candidate of a line, which has *names* among them."""
    candidates = (
        members["candidates"].elements(_MOST_CHOICES) if members["candidates"].value else []
    )
    for candidate in candidates:
        named = dict(candidate.items())
        if not {*names} <= named.keys():
            candidate.fail(f"expected {' and '.join(names)}")
        yield named


def time_in(node: Node) -> float | None:
    """Return the time in *node*, in microseconds; None where it was not timed."""
    return node.optional(lambda one: one.number(0.0, _LONGEST_TIME_US)) or None


def origin_of(members: Mapping[str, Node]) -> MeasuredOn | None:
    """Return where the times of a line were taken; None in lines older than schema 1.

    Raises:
        TableFormatError: a field of schema 1 is missing, or has another type.
    """
    if "schema" not in members:
        return None
    members["schema"].integer(1, TIMINGS_SCHEMA)
    if missing := ", ".join(sorted(_ORIGIN_FIELDS - members.keys())):
        members["schema"].fail(f"missing beside it: {missing}")
    return _measured_on(members)


def is_unstable_line(members: Mapping[str, Node]) -> bool:
    """Whether other processes disturbed the times of a line."""
    return "flags" in members and Flag.UNSTABLE in _texts(members["flags"])


def winner_of(choice: str, templates: Mapping[str, str]) -> Winner:
    """Return the choice with the text *choice*, as a line has it."""
    uid, _, rest = choice.partition("(")
    rest = rest.rpartition(")")[0]
    kwargs: list[tuple[str, KwargValue]] = []
    for name, text in _CHOICE_KWARG.findall(rest):
        is_number = _INTEGER.fullmatch(text) is not None
        kwargs.append((name, int(text) if is_number else _WORD_VALUES.get(text, text)))
    family = _FAMILY_OF.get(uid.partition("::")[0], Family.SUBGRAPH)
    return Winner(family, uid, tuple(kwargs), templates.get(uid))


def _lines(path: Path) -> Iterator[str]:
    try:
        open_text = gzip.open if path.suffix == ".gz" else open
        with open_text(path, "rt", encoding="utf-8") as file:
            while line := file.readline(_MAX_LINE_LETTERS):
                if line.strip():
                    yield line
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingsError(f"{path}: cannot be read: {reason}", _WRITE_ADVICE) from error


def _read(key: str, members: Mapping[str, Node]) -> TimedProblem:
    on = origin_of(members)
    templates = {uid: value.string() for uid, value in (members["templates"].items() if on else ())}
    times: dict[Winner, float] = {}
    scattered = 0
    for named in candidates_of(members, "choice", "time_us"):
        if time_us := time_in(named["time_us"]):
            if "spread" in named and (_spread_in(named["spread"]) or 0.0) > MAX_SPREAD:
                scattered += 1
                continue
            times[winner_of(named["choice"].string(), templates)] = time_us
    return TimedProblem(
        key=key,
        source=members["source"].string() if "source" in members else "",
        is_unstable=is_unstable_line(members),
        times_us=times,
        on=on,
        templates=templates,
        method=members["method"].string() if "method" in members else "",
        scattered=scattered,
    )


def _spread_in(node: Node) -> float | None:
    return node.optional(lambda one: one.number(0.0, _LARGEST_SPREAD))


def _texts(node: Node) -> list[str]:
    return [one.string() for one in node.elements(len(Flag))] if node.value else []


def _measured_on(members: Mapping[str, Node]) -> MeasuredOn:
    device = members["device"].members(frozenset({"name", "sm_count", "arch"}))
    return MeasuredOn(
        device=device["name"].string(),
        sm_count=device["sm_count"].integer(0, 100_000),
        arch=device["arch"].string(),
        torch=members["torch"].string(),
        triton=members["triton"].string(),
    )
