"""`warmup store` and `doctor --tables` on the command line: text, JSON, exit codes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.core.rows import Row
from warmup.table import Table
from warmup.table.codec import encode
from warmup.table.store import read

RunMain = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def added(tmp_path: Path, make_table: Callable[..., Table], run_main: RunMain) -> Path:
    """A folder with t.json, and with its two rows in the store `rows`."""
    (tmp_path / "t.json").write_text(encode(make_table()))
    done = run_main("store", "add", "t.json", "--store", "rows")
    assert (done.returncode, done.stdout[:33]) == (0, "t.json: 2 rows added, 0 known, gr")
    return tmp_path


def test_a_table_comes_back(added: Path, run_main: RunMain) -> None:
    """`get` writes the table that was added, and says so."""
    done = run_main("store", "get", "--like", "t.json", "-o", "out.json", "--store", "rows")
    assert (done.returncode, done.stdout) == (0, "out.json: 2 rows, 0 keys without a row\n")
    assert read(added / "out.json") == read(added / "t.json")


def test_a_table_is_not_replaced_by_less(
    added: Path,
    make_table: Callable[..., Table],
    make_key: Callable[..., str],
    make_row: Callable[..., Row],
    run_main: RunMain,
) -> None:
    """A row that stands in --out alone would be lost: the command is refused, the file stays."""
    table = make_table({make_key(16): make_row(), make_key(560): make_row()})
    (added / "own.json").write_text(encode(table))
    done = run_main("store", "get", "--like", "own.json", "-o", "own.json", "--store", "rows")
    assert done.returncode == 3
    assert "own.json has 1 row that rows would not give back; add it first" in done.stderr
    assert read(added / "own.json") == table


def test_a_store_without_such_rows_says_so(
    added: Path,
    make_table: Callable[..., Table],
    make_key: Callable[..., str],
    run_main: RunMain,
    make_row: Callable[..., Row],
) -> None:
    """Exit code 1, each key is named, and nothing is written."""
    (added / "other.json").write_text(encode(make_table({make_key(7): make_row()})))
    done = run_main("store", "get", "--like", "other.json", "-o", "o.json", "--store", "rows")
    assert (done.returncode, (added / "o.json").exists()) == (1, False)
    assert f"no row: {make_key(7)}" in done.stdout


@pytest.mark.usefixtures("added")
def test_the_list_counts_rows_and_keys(run_main: RunMain) -> None:
    """In text and as JSON."""
    shown = run_main("store", "list", "--store", "rows").stdout
    assert shown.startswith("NVIDIA H200 (sm_90, 132 SMs, 140 GiB) with torch 2.13.0")
    assert "2 rows for 2 keys, 0 with several winners" in shown
    (group,) = json.loads(run_main("store", "list", "--store", "rows", "--json").stdout)
    assert (group["rows"], group["keys"], group["files"], group["templates"]) == (2, 2, 1, 1)


def test_damage_is_said_by_each_command(added: Path, run_main: RunMain) -> None:
    """`add` adds and has exit code 1, `get` is refused, `gc` sets aside, `add` mends."""
    (path,) = (added / "rows").glob("groups/*/*.rows")
    path.write_bytes(b"x")
    get = ("store", "get", "--like", "t.json", "-o", "o.json", "--store", "rows")
    refused = run_main(*get)
    assert (refused.returncode, "`warmup store gc` sets it aside" in refused.stderr) == (3, True)
    listed = run_main("store", "list", "--store", "rows")
    assert (listed.returncode, f"damaged: rows/groups/{path.parent.name}" in listed.stdout) == (
        1,
        True,
    )
    swept = run_main("store", "gc", "--store", "rows")
    assert (swept.returncode, "damaged, set aside" in swept.stdout) == (0, True)
    assert run_main("store", "add", "t.json", "--store", "rows").returncode == 0
    assert run_main(*get).returncode == 0


@pytest.mark.usefixtures("added")
def test_doctor_examines_a_store_instead_of_the_machine(run_main: RunMain) -> None:
    """No finding is about this machine, and a warning is no failure."""
    done = run_main("doctor", "--tables", "rows", "--served", "torch=2.14", "--json")
    findings = json.loads(done.stdout)
    assert (done.returncode, {one["name"] for one in findings}) == (0, {"versions", "drift"})
    assert "2 rows of torch 2.13" in findings[0]["said"]
