"""Files of a benchmark: its folder, its document as JSON, and the line under its charts."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from warmup.core.errors import SettingsError
from warmup.core.files import make_folder, write_output


def write_json(content: Mapping[str, Any], path: Path) -> Path:
    """Write *content* to *path*, create its folder where missing, and return *path*.

    Raises:
        SettingsError: *path* cannot be written.
    """
    make_folder(path.parent, "--out")
    write_output(path, json.dumps(content, indent=2, sort_keys=True) + "\n", "--out")
    return path


def place_of(provenance: Mapping[str, str | None]) -> str:
    """Return the line that ends a chart: device, versions and day of the benchmark."""
    return (
        f"{provenance['device']}, torch {provenance['torch']}, "
        f"triton {provenance['triton'] or 'none'}, warmup {provenance['warmup']}, "
        f"{(provenance['date'] or '')[:10]}"
    )


@contextlib.contextmanager
def result_folder(out: Path | None) -> Iterator[Path]:
    """Yield *out*, created where missing, or a temporary folder without *out*.

    Raises:
        SettingsError: *out* cannot be created.
    """
    if out is None:
        with tempfile.TemporaryDirectory(prefix="warmup-bench-") as temporary:
            yield Path(temporary)
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"--out {out}: {error.strerror}", "name a folder that can be written"
        ) from error
    yield out
