"""`read_profiles`: times of kernels of servers, from documents of `warmup profile --json`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warmup.core.error_text import remedy_for
from warmup.core.errors import SettingsError, TableFormatError
from warmup.core.files import open_regular
from warmup.core.json_node import Node
from warmup.core.strict_json import JsonError, parse_json
from warmup.diagnostics.profile.profile import PROFILE_SCHEMA

_MAX_PROFILE_BYTES: Final = 64 * 2**20
_MAX_PROFILED_US: Final = 1e9
_PROFILE_ADVICE: Final = "write it with `warmup profile TRACE --table TABLE --json`"


@dataclass(frozen=True, slots=True)
class ProfiledTime:
    """A kernel's time in a trace over that of its row: ``ratio``, for ``key`` on ``device``.

    ``row_us`` is the row's time that it was compared with, of a row with this ``winner``.
    """

    key: str
    device: str
    winner: str
    row_us: float
    ratio: float
    profile: str


def read_profiles(paths: Iterable[Path]) -> tuple[ProfiledTime, ...]:
    """Return the times of whole kernels with a row in the documents at *paths*.

    Raises:
        SettingsError: a file cannot be read, or is no document of `warmup profile --json`.
    """
    return tuple(time for path in paths for time in _read(path))


def _read(path: Path) -> list[ProfiledTime]:
    try:
        with open_regular(path) as file:
            text = file.read(_MAX_PROFILE_BYTES + 1)
        root = _document(text)
        device = Node(root.get("device"), str(path)).string()
        lines = [line for bucket in root["buckets"] for line in bucket["kernels"]]
        return [_time_of(line, device, str(path)) for line in lines if _is_judged(line)]
    except OSError as error:
        advice = remedy_for(error, "name a file that can be read")
        raise SettingsError(f"--profiles {path}: {error.strerror}", advice) from error
    except (JsonError, ValueError, KeyError, TypeError, TableFormatError) as error:
        problem = f"--profiles {path}: no document of a profile ({error})"
        raise SettingsError(problem, _PROFILE_ADVICE) from error


def _document(text: bytes) -> Any:
    """Return the document in *text*.

    Raises:
        ValueError: it is none, or is too large.
    """
    if len(text) > _MAX_PROFILE_BYTES:
        raise ValueError(f"more than {_MAX_PROFILE_BYTES} bytes")
    root = parse_json(text.decode("utf-8"))
    if not isinstance(root, dict) or root.get("schema") != PROFILE_SCHEMA:
        raise ValueError(f"expected an object with the schema {PROFILE_SCHEMA}")
    return root


def _is_judged(line: Any) -> bool:
    """Whether *line* is a kernel with one row, whose time is that of the whole kernel."""
    return line["ratio"] is not None and line["is_whole"] is True and len(line["keys"]) == 1


def _time_of(line: Any, device: str, path: str) -> ProfiledTime:
    def number(name: str) -> float:
        return Node(line[name], path).number(1e-9, _MAX_PROFILED_US)

    return ProfiledTime(
        key=Node(line["keys"][0], path).string(),
        device=device,
        winner=Node(line["winner"], path).string(),
        row_us=number("row_us"),
        ratio=number("ratio"),
        profile=path,
    )
