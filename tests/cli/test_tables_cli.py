"""`warmup show`, `diff` and `merge`: texts, exit codes, streams, files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from own_processes import ROOT, Done, run_python
from sample_tables import make_key, make_outcome, make_row, make_runtime, make_table
from typer.testing import CliRunner

from warmup.cli import output
from warmup.cli import tables as show_render
from warmup.cli.app import app
from warmup.cli.tables import spell_candidates, spell_table
from warmup.core.errors import TableFormatError
from warmup.core.rows import MAX_RANKED, Rejection, Scope, ranked
from warmup.core.trial import Tuned, ranking_of
from warmup.table.codec import decode, digest_of, encode
from warmup.table.store import read, write

Command = Callable[..., Done]
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["triton"] = None
from warmup.cli import main
main(sys.argv[1:])
"""
TABLES = ROOT / "tables" / "nvidia-h200"
TABLE = TABLES / "products.bf16.json"
SOUND = TABLES / "unaligned.gpt2head.bf16.json"
WITH_PEAKS = TABLES / "zoo.llama3-8b.bf16.json"


@pytest.fixture
def warmup(folder: Path, run_main: Command) -> Command:
    """``warmup("show", "a.json")`` in the folder of the tables, within this process."""
    del folder
    return run_main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """a.json, b.json (in conflict with a), c.json (in none), other.json (another device)."""
    mm, gelu = make_key(16, op="mm"), make_key(560, epilogue="gelu_tanh")
    a = {make_key(560): make_row("mm_a", 9.0), mm: make_row("mm_a"), gelu: make_row("mm_a")}
    files = {
        "a": make_table(a),
        "b": make_table({make_key(560): make_row("mm_b", 8.0)}),
        "c": make_table({make_key(9): make_row("mm_c")}),
        "other": make_table({}, runtime=make_runtime(sm_count=78)),
    }
    for name, table in files.items():
        (tmp_path / f"{name}.json").write_text(encode(table))
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "log.jsonl").write_text(
        '{"event":"lookup.hit","schema":1,"run":"r","pid":1,"seq":0,"key":"k"}\n'
    )
    (tmp_path / "newer.json").write_text('{"schema": 99}')
    return tmp_path


def test_show_filters_rows(warmup: Command) -> None:
    """--rows keeps the rows with exactly these words; without any the exit code is 1."""
    for filters, shown in (("", 3), ("mm", 1), ("addmm", 2), ("m=560", 2), ("m=56", 0)):
        done = warmup("show", "a.json", "--rows", filters)
        flags = f", {shown} near_tie, timed at 1980 MHz" if shown else ""
        assert (done.returncode, "matches" in done.stderr) == (int(not shown), not shown), filters
        assert done.stdout.startswith("NVIDIA H200 (sm_90), torch 2.13.0, trit"), filters
        assert done.stdout.splitlines()[-1] == f"{shown} of 3 rows{flags}", filters


def test_a_refused_merge_writes_nothing(warmup: Command, folder: Path) -> None:
    for other in ("b.json", "other.json", "bad.json", "absent.json"):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        warmup("merge", "a.json", other, "-o", "out.json")
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, other


def test_tables_need_no_torch(folder: Path) -> None:
    for words in (
        ("show", "a.json"),
        ("diff", "a.json", "a.json"),
        ("merge", "a.json", "c.json", "-o", "out.json"),
        ("audit", "log.jsonl"),
    ):
        done = run_python("-c", WITHOUT_TORCH, *words, cwd=folder)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_any_encoding_of_the_terminal_will_do(root: Path, folder: Path) -> None:
    for words in (("show", "t.json"), ("diff", "t.json", "a.json")):
        (folder / "t.json").write_text(encode(make_table(runtime=make_runtime(name="Tésla Ω"))))
        done = subprocess.run(
            [sys.executable, "-m", "warmup", *words],
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONIOENCODING": "ascii"},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, words


def test_show_json_is_the_document(warmup: Command, folder: Path) -> None:
    done = warmup("show", "a.json", "--json")
    assert json.loads(done.stdout) == json.loads((folder / "a.json").read_text())
    done = warmup("show", "a.json", "--json", "--rows", "mm")
    assert list(json.loads(done.stdout)["rows"]["gemm"]) == [make_key(16, op="mm")]


def test_a_difference_is_exit_1_and_on_stdout(warmup: Command) -> None:
    """One sign for each kind; with --json one document, difference or not."""
    done = warmup("diff", "a.json", "a.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no difference\n")
    done = warmup("diff", "a.json", "b.json")
    signs = [line[0] for line in done.stdout.splitlines() if line[0] != " "]
    assert (done.returncode, done.stderr, signs) == (1, "", ["-", "-", "~"])
    for other, code in (("a.json", 0), ("b.json", 1)):
        done = warmup("diff", "a.json", other, "--json")
        assert (done.returncode, len(json.loads(done.stdout)["changed"])) == (code, code), other


def test_merge_settles_conflicts_with_a_preference(warmup: Command, folder: Path) -> None:
    done = warmup("merge", "a.json", "b.json", "-o", "out.json")
    first, second = done.stderr.splitlines()
    said = "error: 1 conflict; settle them with --prefer evidence, a, b or faster:"
    assert (done.returncode, done.stdout, first) == (3, "", said)
    assert second.startswith(f"    {make_key(560)}: mm_a")
    for prefer, uid in (("a", "mm_a"), ("b", "mm_b"), ("faster", "mm_b")):
        warmup("merge", "a.json", "b.json", "-o", "out.json", "--prefer", prefer)
        assert read(folder / "out.json").rows[make_key(560)].winner.uid == uid, prefer
    done = warmup("merge", "a.json", "c.json", "-o", "a.json")
    assert (done.returncode, len(read(folder / "a.json").rows)) == (0, 4)


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (output, show_render):
        monkeypatch.setattr(module, "terminal_width", lambda: 80)


@pytest.mark.usefixtures("on_terminal")
def test_no_line_is_longer_than_the_terminal() -> None:
    long = ",".join(f"mul(bf16[560,{n}])" for n in range(1, 12))
    keys = [make_key(560), make_key(1024), make_key(560, epilogue=long)]
    lines = list(spell_table(make_table({key: make_row() for key in keys})))
    assert max(map(len, lines)) <= 80
    assert "".join(line.strip() for line in lines).count(long) == 1
    two = list(spell_table(make_table({key: make_row() for key in keys[:2]})))
    assert len(two[two.index(next(line for line in two if line[:4] == "gemm")) + 2 : -1]) <= 2 * 2


def test_a_ranking_has_the_ten_fastest_that_were_timed_alike() -> None:
    """A time of the GEMM alone is not compared with one of the GEMM and its epilogue.

    The ranking survives the file and is in the digest; anything but times with names is refused.
    """
    for fused, numbers in (
        ({}, (0, 1, 2, 4, 5, 6, 7, 8, 9, 10)),
        ({"triton_05": 21.5, "triton_01": 20.25}, (1, 5)),
    ):
        row, key = make_row(), make_key()
        winners = [replace(row.winner, uid=f"triton_{number:02}") for number in range(14)]
        timings = [
            make_outcome(one, 10.0 + number, fused=make_outcome(one, fused.get(one.uid)))
            for number, one in enumerate(winners)
        ]
        timings[3] = replace(timings[3], rejection=Rejection.WRONG)
        scope = Scope.FUSED if fused else Scope.BARE
        plain = replace(row, evidence=replace(row.evidence, scope=scope))
        ranking = ranking_of(Tuned(key, plain, tuple(timings)))
        evidence = replace(plain.evidence, ranking=ranking)
        names = [name.split()[0] for _, name in ranked(evidence.ranking)]
        assert names == [f"triton_{number:02}" for number in numbers], fused
        table = make_table({key: replace(row, evidence=evidence)})
        assert decode(encode(table), "t").rows[key].evidence == evidence
        assert digest_of(table) != digest_of(make_table({key: plain}))
        for wrong in ("x aten::mm", "1.5", "1.5 \x1b[2J", "; ".join(["1 a"] * (MAX_RANKED + 1))):
            damaged = replace(row, evidence=replace(evidence, ranking=wrong))
            with pytest.raises(TableFormatError, match="ranking"):
                decode(encode(make_table({key: damaged})), "t")


@pytest.mark.usefixtures("on_terminal")
def test_shipped_tables_fit_the_terminal(root: Path) -> None:
    for path in sorted((root / "tables").rglob("*.json")):
        table = read(path)
        lines = [*spell_table(table), *spell_candidates(table, [*table.rows][:5])]
        assert (path.name, max(map(len, lines)) <= 80) == (path.name, True)


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["show", *map(str, arguments)])
    return result.exit_code, result.output


def test_doubts_are_printed_with_their_reason_in_eighty_columns() -> None:
    code, text = run(SOUND, WITH_PEAKS, "--review")
    assert code == 0
    assert text.index(str(SOUND)) < text.index(str(WITH_PEAKS))
    assert "50 numbers, 0 probably wrong, 5 to look at" in " ".join(text.split())
    assert re.search(r"^      \d+% of the measured peak", text, re.MULTILINE)
    body = [line for line in text.splitlines() if str(TABLES) not in line]
    assert "to look at: explain, or measure again (5)" in body
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
        (WITH_PEAKS, "wrong", 0),
        (WITH_PEAKS, "look", 1),
        (doubted, "wrong", 1),
    ):
        assert run(path, "--review", "--fail-on", level)[0] == code, (path, level)


def test_options_of_a_review_need_it_and_filters_do_not_fit_it() -> None:
    for words in (
        (TABLE, "--fail-on", "wrong"),
        (TABLE, "--review", "--rows", "mm"),
        (SOUND, TABLE),
    ):
        assert run(*words)[0] == 2, words
