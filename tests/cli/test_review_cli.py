"""`warmup show --review` as a command: what it prints, and its exit codes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from own_processes import ROOT
from typer.testing import CliRunner

from warmup.cli.app import app
from warmup.table.store import read, write

TABLES = ROOT / "tables" / "nvidia-h200"
TABLE = TABLES / "products.bf16.json"
SOUND = TABLES / "unaligned.gpt2head.bf16.json"
WITH_PEAKS = TABLES / "zoo.llama3-8b.bf16.json"


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["show", *map(str, arguments)])
    return result.exit_code, result.output


def test_doubts_are_printed_with_their_reason_in_eighty_columns() -> None:
    code, text = run(SOUND, TABLE, "--review")
    assert code == 0
    assert text.index(str(SOUND)) < text.index(str(TABLE))
    assert "122 numbers, 0 probably wrong, 16 to look at" in " ".join(text.split())
    assert re.search(r"^      \d+% of the measured peak", text, re.MULTILINE)
    body = [line for line in text.splitlines() if str(TABLES) not in line]
    assert "to look at: explain, or measure again (16)" in body
    assert max(map(len, body)) <= 80


def test_fail_on_takes_a_level_and_all_worse_ones(tmp_path: Path) -> None:
    table = read(WITH_PEAKS)
    key = next(key for key in table.rows if key.startswith("mm ") and "m=1 " not in key)
    row = table.rows[key]
    fast = replace(row, evidence=replace(row.evidence, time_us=0.1, bare_us=None))
    doubted = tmp_path / "doubted.json"
    write(doubted, replace(table, rows={**table.rows, key: fast}))
    for path, level, code in (
        (SOUND, "look", 0),
        (TABLE, "wrong", 0),
        (TABLE, "look", 1),
        (doubted, "wrong", 1),
    ):
        assert run(path, "--review", "--fail-on", level)[0] == code, (path, level)


def test_peaks_can_be_those_of_another_table() -> None:
    code, text = run(TABLE, "--review", "--peaks", WITH_PEAKS, "--json")
    (found,) = json.loads(text)
    assert (code, found["peaks"]["tflops"]["bf16"], found["peaks_origin"]) == (0, 824.1, "given")
    assert len(found["numbers"]) == 122
    assert all(number["share"] is not None for number in found["numbers"])


def test_options_of_a_review_need_it_and_filters_do_not_fit_it() -> None:
    for words in (
        (TABLE, "--fail-on", "wrong"),
        (TABLE, "--peaks", WITH_PEAKS),
        (TABLE, "--review", "--rows", "mm"),
        (SOUND, TABLE),
    ):
        assert run(*words)[0] == 2, words
