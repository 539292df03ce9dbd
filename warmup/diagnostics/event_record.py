"""`event_text`, `read_record` and `read_fields`: the events in lines of logs, not trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from warmup.core.events import EVENT_SCHEMA, LOG_MARKER, NO_TABLE, EventName

_MAX_COUNT: Final = 10**15


def read_text(value: Any) -> str:
    """Return *value*, a text.

    Raises:
        TypeError: *value* is no text.
    """
    if type(value) is not str:
        raise TypeError("no text")
    return value


def _text_or_no_table(value: Any) -> str:
    return NO_TABLE if value is None else read_text(value)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else read_text(value)


def _texts(value: Any) -> tuple[str, ...]:
    if type(value) is not list:
        raise TypeError("no list")
    return tuple(map(read_text, value))


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("no flag")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise ValueError("no count")
    return value


# Events of earlier builds of warmup 0.1, which no run emits any more: skipped, and no damage.
RETIRED: Final = frozenset({"lookup.predicted"})
# The fields that each event must have.
_IDENTITY: Final = {"run": read_text, "pid": _count, "seq": _count}
_READ_FIELDS: Final[Mapping[str, Mapping[str, Callable[[Any], Any]]]] = {
    EventName.INSTALLED: {
        "paths": _texts,
        "table": read_text,
        **dict.fromkeys(("device", "torch", "triton"), _text_or_none),
    },
    EventName.MISMATCHED: {},
    EventName.HIT: {"key": read_text},
    EventName.TUNED: {"key": read_text},
    EventName.MISSED: {"key": read_text, "reason": read_text},
    EventName.CACHED: {"decisions": _count, "misses": _count},
    EventName.FOREIGN: {"compiled_under": _text_or_no_table},
    EventName.UNCOVERED: {"site": read_text},
    EventName.OUTSIDE: {"reason": read_text, "calls": _count},
    EventName.CONTRADICTED: {"option": read_text, "expected": read_text, "found": read_text},
    EventName.OVERRULED: {},
    EventName.BYPASSED: {"cause": read_text},
    EventName.UNCOMPILED: {"frame": read_text, "reason": read_text},
    EventName.FAILED: {"refused": _flag},
    EventName.SUMMARY: {},
}
# Absent in logs of earlier builds of warmup 0.1.
_DEFAULTS: Final = {
    "misses": 0,
    "refused": False,
    **dict.fromkeys(("device", "torch", "triton")),
}


# Other programs write {"event": ...} too, so only lines with warmup's event names count.
_JSON_LINE: Final = re.compile(rf'\{{"event": ?"(?:{"|".join(map(re.escape, EventName))})"')


def event_text(line: str) -> str | None:
    """Return what begins with the JSON of an event in *line*, None where the line has no event."""
    if _JSON_LINE.match(line):
        return line
    _, marker, rest = line.partition(f"{LOG_MARKER} ")
    return rest if marker and rest.startswith("{") else None


def read_record(text: str) -> dict[str, Any]:
    """Return the event that *text* begins with, empty where it has another schema or is damaged."""
    try:
        record, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return {}
    is_event = isinstance(record, dict) and record.get("schema") == EVENT_SCHEMA
    return record if is_event else {}


def read_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are counted of the event *record*.

    Raises:
        KeyError, TypeError, ValueError: the event is damaged.
    """
    wanted = {**_IDENTITY, **_READ_FIELDS[record["event"]]}
    record = {**_DEFAULTS, **record}
    return {name: read_field(record[name]) for name, read_field in wanted.items()}
