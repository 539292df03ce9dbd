"""What ships beside the code and its tables: the benchmark page, the README's commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_page_says_what_the_results_say() -> None:
    """The tables of README.md and docs/benchmarks are what render.py makes of the results."""
    command = [sys.executable, str(ROOT / "docs/benchmarks/render.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0


def test_the_reference_pages_say_what_the_code_says() -> None:
    """The generated parts of docs/reference are up to date."""
    command = [sys.executable, str(ROOT / "docs/reference/generate.py"), "--check"]
    assert subprocess.run(command, check=False, cwd=ROOT).returncode == 0


def test_every_shipped_table_gains_over_default_mode() -> None:
    """A comparison of exactly this table has its 95 % interval above 1, alone or padded."""
    sys.path.insert(0, str(ROOT / "docs/benchmarks"))
    try:
        from render import table_gains
    finally:
        sys.path.pop(0)
    gains = table_gains()
    assert sorted(gains) == sorted((ROOT / "tables").rglob("*.json"))
    for path, gained in gains.items():
        assert any(speedup["low"] > 1 for _, _, speedup in gained), path.name


def test_every_relative_link_in_the_pages_leads_somewhere() -> None:
    """Links between README and docs point at files that exist."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "tables").rglob("*.md")]
    link = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in link.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []
