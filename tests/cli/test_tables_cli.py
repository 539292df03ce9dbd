"""`warmup show`, `diff` and `merge`, some in their own process: exit codes, streams, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from own_processes import Done, run_python
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.table.codec import encode
from warmup.table.store import read

Command = Callable[..., Done]
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["triton"] = None
from warmup.cli import main
main(sys.argv[1:])
"""


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


def test_merge_writes_the_union(warmup: Command, folder: Path) -> None:
    done = warmup("merge", "a.json", "c.json", "--out", "new/out.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "new/out.json: 4 rows\n")
    assert len(read(folder / "new/out.json").rows) == 4


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
