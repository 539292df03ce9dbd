"""The way of one GEMM decision: what it passes from inductor's selection to the row on disk.

docs/explanation/walk.md shows it. Fewer modules and records are better: lower the numbers then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

MOST = {"built": (37, 8), "served": (15, 2)}  # modules, records


@pytest.fixture(scope="module")
def walks(
    run_once: Callable[..., tuple[Path, str]], root: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What ``walk.py`` prints where no peaks of the device are known."""
    program, cache = root / "tests" / "programs" / "walk.py", tmp_path_factory.mktemp("cache")
    _, printed = run_once("walk", str(program), ".", XDG_CACHE_HOME=str(cache))
    walks: dict[str, Any] = json.loads(printed)
    return walks


def test_a_decision_passes_few_modules_and_records(walks: dict[str, Any]) -> None:
    """Built, from the question to the row on disk; served, from the question to its event."""
    for how, (modules, records) in MOST.items():
        walk = walks[how]
        assert len(walk["modules"]) <= modules, (how, walk["modules"])
        assert len(walk["records"]) <= records, (how, walk["records"])
        assert walk["modules"][0] == "inductor.gemm.hooks", how
    assert "Row" in walks["built"]["records"]
    assert "Hit" in walks["served"]["records"]


def test_the_page_names_the_modules_in_order(walks: dict[str, Any], root: Path) -> None:
    """docs/explanation/walk.md has both walks, each module once."""
    page = (root / "docs/explanation/walk.md").read_text(encoding="utf-8")
    for heading, how in (("## Built", "built"), ("## Served", "served")):
        part = page.partition(heading)[2].partition("## ")[0]
        shown = re.findall(r"^\d+\. `([\w/]+)`", part, re.MULTILINE)
        assert [name.replace("/", ".") for name in shown] == walks[how]["modules"], how


def test_a_problem_is_described_and_looked_up_once(walks: dict[str, Any]) -> None:
    """Where inductor lists the candidates; its selection takes the answer from there."""
    for how, walk in walks.items():
        assert (walk["described"], walk["looked_up"]) == (1, 1), how
