"""Fixtures: small models with unaligned sizes, a table that pads them, the progress of a build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from padding_models import gated, head, language_model, model_inputs, weighed

from warmup.table.schema import Table
from warmup.table.store import write
from warmup.tuning.progress import Progress

__all__ = ["gated", "head", "language_model", "model_inputs", "weighed"]


@pytest.fixture
def make_progress(tmp_path: Path) -> Callable[..., Progress]:
    """``make_progress(table, can_search=True)``: of a build that goes on from *table*, on disk."""

    def make(table: Table, **changes: Any) -> Progress:
        path = tmp_path / "t.json"
        write(path, table)
        return Progress(path=path, table=table, replaces=False, **changes)

    return make
