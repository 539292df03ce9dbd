"""Benchmark documents: writing them as JSON, and the line of provenance under their charts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
