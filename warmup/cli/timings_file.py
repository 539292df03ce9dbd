"""`TimingsFile`: the file of ``build --timings``, to which each tuned problem is added at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from warmup.core.errors import SettingsError
from warmup.core.method import Method
from warmup.core.rows import Tuned
from warmup.core.runtime import Runtime
from warmup.prediction.timing_lines import line_of


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
