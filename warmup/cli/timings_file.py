"""`TimingsFile`: the file of ``build --timings``, to which each tuned problem is added at once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from warmup.core.errors import SettingsError
from warmup.core.method import Method
from warmup.core.rows import Tuned
from warmup.core.runtime import Runtime
from warmup.core.search import search_to_json

TIMINGS_SCHEMA: Final = 1


@dataclass
class TimingsFile:
    """A file of timings. ``sources`` says of what model a key is; other keys are of ``source``."""

    file: TextIO
    source: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    _here: Runtime | None = None
    _method: str = ""

    def measured_on(self, here: Runtime, method: Method) -> None:
        """Write of all further problems that they were measured *here* by *method*."""
        self._here, self._method = here, f"{method.launch} {method.l2}"

    def add(self, tuned: Tuned) -> None:
        """Write the line of *tuned*, so that it survives the build."""
        assert self._here is not None
        source = self.sources.get(tuned.key, self.source)
        self.file.write(line_of(tuned, self._here, self._method, source) + "\n")
        self.file.flush()


def line_of(tuned: Tuned, here: Runtime, method: str, source: str = "") -> str:
    """Return *tuned*, measured *here*, as a line without a newline; cli.md has each field.

    *method* is how calls were launched and what the L2 held, ``eager cold``; *source* names the
    model that the problem is of. Times are medians in microseconds.
    """
    device = here.device
    hashes = {
        timing.winner.uid: timing.winner.source_hash
        for timing in tuned.timings
        if timing.winner.source_hash is not None
    }
    origin: dict[str, Any] = {
        "schema": TIMINGS_SCHEMA,
        "source": source,
        "device": {"name": device.name, "sm_count": device.sm_count or 0, "arch": device.arch},
        "torch": here.torch,
        "triton": here.triton or "",
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


@contextlib.contextmanager
def timings_file(
    path: Path | None, source: str, sources: Mapping[str, str]
) -> Iterator[TimingsFile | None]:
    """Give the file of timings at *path*, None without a path. Lines are added to an older file.

    Raises:
        SettingsError: *path* cannot be written.
    """
    if path is None:
        yield None
        return
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"--timings {path}: cannot be written: {error.strerror}", "name a writable file"
        ) from error
    with file:
        yield TimingsFile(file, source, sources)
