"""The shipped tables, read once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from warmup.table.schema import Table
from warmup.table.store import read


@pytest.fixture(scope="session")
def shipped() -> Mapping[Path, Table]:
    folder = Path(__file__).resolve().parents[2] / "tables"
    return {path: read(path) for path in sorted(folder.rglob("*.json"))}


@pytest.fixture(scope="session")
def mixed(shipped: Mapping[Path, Table]) -> Table:
    """A shipped table with rows of most kinds, to damage."""
    (table,) = (each for path, each in shipped.items() if path.match("*h200/vision-block.*"))
    return table
