"""`warmup review` as a command: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from warmup.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "benchmarks" / "results"
TABLE = ROOT / "tables" / "nvidia-h200" / "llama-blocks.ranges.bf16.json"
DOUBTED = RESULTS / "compare-products-plain-2-h200.json"
SOUND = RESULTS / "bench-mm-h200.json"


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["review", *map(str, arguments)])
    return result.exit_code, result.output


def test_doubts_are_printed_with_their_reason_in_eighty_columns() -> None:
    """The file with its peaks first, then each doubt under its level."""
    code, text = run(TABLE)
    assert code == 0
    assert "60 numbers, 0 probably wrong, 9 to look at" in " ".join(text.split())
    assert "implied by the rows" in " ".join(text.split())
    assert "      the time falls: 13.66 us at 1, 12 us at 16" in text
    body = [line for line in text.splitlines() if str(TABLE) not in line]
    assert "to look at: explain, or measure again (9)" in body
    assert max(map(len, body)) <= 80


@pytest.mark.parametrize(
    ("file", "level", "code"),
    [(SOUND, "look", 0), (TABLE, "wrong", 0), (TABLE, "look", 1), (DOUBTED, "wrong", 1)],
)
def test_fail_on_takes_a_level_and_all_worse_ones(file: Path, level: str, code: int) -> None:
    """A doubt of the named level, or a worse one, is exit code 1."""
    assert run(file, "--fail-on", level)[0] == code


def test_several_files_are_reviewed_in_order() -> None:
    """Each has its own heading."""
    _, text = run(SOUND, TABLE)
    assert text.index(str(SOUND)) < text.index(str(TABLE))


def test_peaks_can_be_those_of_another_file() -> None:
    """With the peaks of a benchmark on the same kind of device, shares are of these."""
    code, text = run(TABLE, "--peaks", SOUND, "--json")
    (found,) = json.loads(text)
    assert code == 0
    assert found["peaks"]["tflops"]["bf16"] == 808.2
    assert found["peaks_origin"] == "given"
    assert len(found["numbers"]) == 60
    assert all(number["share"] is not None for number in found["numbers"])


def test_a_file_without_peaks_cannot_give_them(tmp_path: Path) -> None:
    """The error names the file."""
    document = json.loads(SOUND.read_text(encoding="utf-8"))
    without = tmp_path / "bench.json"
    without.write_text(json.dumps({**document, "peaks": None}), encoding="utf-8")
    result = CliRunner().invoke(app, ["review", str(TABLE), "--peaks", str(without)])
    assert result.exit_code != 0
    code, text = run(without)
    assert code == 0
    assert "no measured peaks: no shares" in text
