"""The budget of the house: what may not grow. A change that adds says what it replaces.

Modules, options and words are the house's. Its goals for lines, 40,000 and 30,000 of tests, are not
reached: until then each number is what the last change reached.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from import_graph import sources

ROOT = Path(__file__).resolve().parents[1]

MOST_LINES = 46_150
MOST_MODULES = 130
LONGEST_MODULE = 800
MOST_COMMANDS = 14
MOST_OPTIONS = 140
MOST_EXIT_CODES = 9
MOST_TEST_LINES = 39_410
MOST_TESTS = 3_000
MOST_WORDS = 43_900
MOST_BYTES = 8_700_000


def tracked(*patterns: str) -> Iterator[Path]:
    listed = subprocess.run(
        [shutil.which("git") or "git", "ls-files", "-z", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    yield from (path for name in listed.stdout.split("\0") if (path := ROOT / name).is_file())


def lines_of(paths: Iterator[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def test_the_package_stays_within_its_lines_and_modules() -> None:
    """Lines and modules of warmup/, and no module beyond the longest."""
    texts = sources()
    lengths = {name: text.count("\n") for name, text in texts.items()}
    modules = [path for path in tracked("warmup/*.py") if path.name != "__init__.py"]
    assert sum(lengths.values()) <= MOST_LINES
    assert len(modules) <= MOST_MODULES
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}


def test_the_commands_stay_within_their_options() -> None:
    """Commands and options of the contract, as click lists them, and exit codes."""
    contract = json.loads((ROOT / "tests/contract.json").read_text(encoding="utf-8"))
    commands = contract["commands"]
    options = [each for listed in commands.values() for each in listed if each.startswith("-")]
    assert len(commands) - 1 <= MOST_COMMANDS
    assert len(options) <= MOST_OPTIONS
    assert len(set(contract["exit codes"].values())) <= MOST_EXIT_CODES


def test_the_words_and_bytes_stay_within_their_limits() -> None:
    """Words of docs/ and README, lines of tests, bytes of all tracked files."""
    pages = tracked("README.md", "docs/*.md")
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in pages) <= MOST_WORDS
    assert lines_of(tracked("tests/*.py")) <= MOST_TEST_LINES
    tests = sum(
        path.read_text(encoding="utf-8").count("\ndef test_") for path in tracked("tests/*.py")
    )
    assert tests <= MOST_TESTS
    assert sum(path.stat().st_size for path in tracked()) <= MOST_BYTES
